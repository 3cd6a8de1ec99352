"""What SQL a caller's query may have: an allow list over the tree that DuckDB itself has parsed.

DuckDB serialises the tree as JSON, and :func:`check_tree` visits each node and field of it. A kind of
node, a field, a table or a function that is not listed here is refused, wherever it stands. So what a new version of
DuckDB adds is refused until it is listed. The allowed functions read their arguments and nothing else, except the clock
and random numbers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

SERIALIZED = "SELECT json_serialize_sql($1, skip_null := true, skip_empty := true, skip_default := true)"
"""DuckDB's query for the tree of a text, ``$1``, as JSON."""
TABLE_FUNCTIONS = ("unnest", "generate_series", "range")
"""Functions that may stand in FROM."""
_OPERATORS = """
!__postfix !~~ !~~* % & && * ** + - ->> / // <-> << <=> <@ >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~
ilike_escape like_escape not_ilike_escape not_like_escape
"""
_SCALARS = """
abs acos acosh add aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat
array_contains array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct
array_dot_product array_extract array_filter array_grade_up array_has array_has_all array_has_any array_indexof
array_inner_product array_intersect array_length array_negative_dot_product array_negative_inner_product array_pop_back
array_pop_front array_position array_prepend array_push_back array_push_front array_reduce array_resize array_reverse
array_reverse_sort array_select array_slice array_sort array_to_json array_to_string array_to_string_comma_default
array_transform array_unique array_value array_where array_zip ascii asin asinh atan atan2 atanh bar base64 bin binom
bit_count bit_length bit_position bitstring cardinality cbrt ceil ceiling century char_length character_length chr
concat concat_ws contains cos cosh cot damerau_levenshtein date_add date_diff date_part date_sub date_trunc datediff
datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade decode degrees divide
editdist3 element_at encode ends_with enum_code enum_first enum_last enum_range enum_range_boundary epoch epoch_ms
epoch_ns epoch_us equi_width_bins era error even exp factorial fdiv filter flatten floor fmod format
formatreadabledecimalsize formatreadablesize format_bytes from_base64 from_binary from_hex from_json from_json_strict
gamma gcd generate_series generate_subscripts get_bit grade_up greatest greatest_common_divisor hamming hash hex hour if
instr isfinite isinf isnan isodow isoyear jaccard jaro_similarity jaro_winkler_similarity json json_array
json_array_length json_contains json_deep_merge json_exists json_extract json_extract_path json_extract_path_text
json_extract_string json_insert json_keys json_merge_patch json_merge_patch_diff json_normalize json_object json_pretty
json_quote json_remove json_replace json_set json_strip_nulls json_structure json_transform json_transform_strict
json_type json_valid json_value julian last_day lcase lcm least least_common_multiple left left_grapheme len length
length_grapheme levenshtein lgamma list_aggr list_aggregate list_any_value list_append list_apply
list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_cat
list_concat list_contains list_cosine_distance list_cosine_similarity list_count list_distance list_distinct
list_dot_product list_element list_entropy list_extract list_filter list_first list_grade_up list_has list_has_all
list_has_any list_histogram list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop list_last
list_mad list_max list_median list_min list_mode list_negative_dot_product list_negative_inner_product list_pack
list_position list_prepend list_product list_reduce list_resize list_reverse list_reverse_sort list_select list_sem
list_skewness list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum list_transform list_unique
list_value list_var_pop list_var_samp list_where list_zip ln log log10 log2 lower lpad ltrim make_date make_time
make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz map map_concat map_contains map_contains_entry
map_contains_value map_entries map_extract map_extract_value map_from_entries map_keys map_values md5 md5_number
md5_number_lower md5_number_upper microsecond millennium millisecond minute mismatches mod month monthname multiply
nanosecond nextafter nfc_normalize normalized_interval nullif octet_length ord overlay parse_formatted_bytes pi position
pow power prefix printf quarter radians range reduce regexp_escape regexp_extract regexp_extract_all regexp_full_match
regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table repeat replace reverse right right_grapheme
round round_even roundbankers row row_to_json rpad rtrim second set_bit sha1 sha256 sign signbit sin sinh split
split_part sqrt starts_with str_split str_split_regex strftime string_split string_split_regex string_to_array
strip_accents strlen strpos strptime struct_concat struct_contains struct_extract struct_extract_at struct_has
struct_indexof struct_insert struct_keys struct_pack struct_position struct_update struct_values substr substring
substring_grapheme subtract suffix switch tan tanh time_bucket timezone timezone_hour timezone_minute to_base to_base64
to_binary to_centuries to_days to_decades to_hex to_hours to_json to_microseconds to_millennia to_milliseconds
to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years translate trim trunc try_strptime typeof
ucase unbin unhex unicode union_extract union_tag union_value unnest upper url_decode url_encode uuid_extract_timestamp
uuid_extract_version week weekday weekofyear xor year yearweek
"""
_AGGREGATES = """
any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last arg_min
arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or bit_xor bitstring_agg bool_and bool_or corr
count count_if count_star countif covar_pop covar_samp entropy favg first fsum geomean geometric_mean group_concat
histogram histogram_exact json_group_array json_group_object json_group_structure kahan_sum kurtosis kurtosis_pop last
list listagg lttb mad max max_by mean median min min_by mode product quantile quantile_cont quantile_disc regr_avgx
regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop
stddev_samp string_agg sum sumkahan var_pop var_samp variance wavg weighted_avg
"""
_WINDOWS = """
cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense row_number
"""
CLOCK_AND_CHANCE = frozenset(
    [
        "age",
        "ago",
        "current_date",
        "current_localtime",
        "current_localtimestamp",
        "gen_random_uuid",
        "get_current_time",
        "get_current_timestamp",
        "now",
        "random",
        "today",
        "transaction_timestamp",
        "uuid",
        "uuidv4",
        "uuidv7",
    ]
)
"""The allowed functions that read more than their arguments: the clock, or random numbers."""
FUNCTIONS = CLOCK_AND_CHANCE | frozenset(f"{_OPERATORS} {_SCALARS} {_AGGREGATES} {_WINDOWS}".split())
"""Functions and operators that may stand in an expression, in lower case."""
_COLUMN_FUNCTIONS = frozenset(
    ["current_catalog", "current_role", "current_schema", "current_user", "session_user", "user"]
)
"""Functions that DuckDB calls where no column has their name; none is allowed. The clock's are."""

_EVERYWHERE = frozenset(["alias", "class", "query_location", "query_location_length", "type"])
"""Fields that each node has, and that say nothing but where it stands and what it is."""
_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        kind: _EVERYWHERE | frozenset(names.split())
        for kind, names in {
            # Queries
            ".statements": "named_param_map node",
            "SELECT_NODE": "aggregate_handling cte_map from_table group_expressions group_sets having modifiers qualify"
            " sample select_list where_clause",
            "SET_OPERATION_NODE": "children cte_map left modifiers right setop_all setop_type",
            "RECURSIVE_CTE_NODE": "aliases cte_map cte_name key_targets left modifiers right union_all",
            ".cte_map": "map",
            ".map": "key value",
            ".named_param_map": "key value",
            "DISTINCT_MODIFIER": "distinct_on_targets",
            "LIMIT_MODIFIER": "limit limit_type offset",
            "LIMIT_PERCENT_MODIFIER": "limit offset",
            "ORDER_MODIFIER": "orders",
            "ORDER_DEFAULT": "expression null_order",
            "ASCENDING": "expression null_order",
            "DESCENDING": "expression null_order",
            ".sample": "is_percentage method repeatable sample_rate sample_size seed",
            ".sample_size": "is_null value",
            # FROM; no other source of rows is known, neither SHOW nor a table AT a version
            "BASE_TABLE": "catalog_name column_name_alias qualified_name sample schema_name table_name",
            "EMPTY": "sample",
            "EXPRESSION_LIST": "expected_names expected_types sample values",
            "JOIN": "condition delim_flipped duplicate_eliminated_columns is_implicit join_type left nearest_approx"
            " nearest_count nearest_order_type ranking_expression ref_type right sample using_columns",
            "PIVOT": "aggregates column_name_alias groups include_nulls pivots sample source unpivot_names",
            ".pivots": "entries pivot_expressions unpivot_names",
            ".entries": "star_expr values",
            "TABLE_FUNCTION": "column_name_alias function sample with_ordinality",
            # A subquery, in FROM or in an expression
            "SUBQUERY": "child column_name_alias comparison_type sample subquery subquery_type",
            ".subquery": "named_param_map node",
            ".query": "named_param_map node",
            # Expressions
            "BETWEEN": "input lower upper",
            "CASE": "case_checks else_expr",
            ".case_checks": "then_expr when_expr",
            "CAST": "cast_type child try_cast type_expr",
            "COLLATE": "child collation",
            "COLUMN_REF": "column_names",
            "COMPARISON": "left right",
            "CONJUNCTION": "children",
            "CONSTANT": "literal value",
            ".literal": "kind text",
            "FUNCTION": "arguments catalog children distinct export_state filter function_name is_legacy_function_call"
            " is_operator order_bys qualified_name schema",
            ".arguments": "expression name",
            ".qualified_name": "path",
            "LAMBDA": "expr lhs syntax_type",
            "OPERATOR": "children",
            "PARAMETER": "identifier",
            "POSITIONAL_REFERENCE": "index",
            "STAR": "columns exclude_list expr qualified_exclude_list relation_name rename_list replace_list",
            ".qualified_exclude_list": "catalog column schema table",
            ".key": "catalog column schema table",
            ".rename_list": "key value",
            ".replace_list": "key value",
            "WINDOW": "arg_orders arguments catalog children default_expr distinct end end_expr exclude_clause"
            " filter_expr function_name has_ignore_nulls ignore_nulls is_legacy_function_call offset_expr orders"
            " partitions qualified_name schema start start_expr",
            # Types, and values of constants
            "TYPE": "catalog children qualified_name schema type_name",
            **dict.fromkeys((".cast_type", ".child_type", ".second", ".type", ".expected_types"), "id type_info"),
            ".child_types": "first second",
            "ARRAY_TYPE_INFO": "child_type extension_info size",
            "DECIMAL_TYPE_INFO": "extension_info scale width",
            "LIST_TYPE_INFO": "child_type extension_info",
            "STRUCT_TYPE_INFO": "child_types extension_info",
            "UNBOUND_TYPE_INFO": "catalog extension_info name schema user_type_modifiers",
            ".user_type_modifiers": "is_null value",
            ".values": "is_null value",
            # Of a CTE, of a constant, and of what a star replaces
            ".value": "aliases is_null key_targets lower materialized payload_aggregates query query_node upper value"
            " children",
            ".children": "is_null value",
        }.items()
    }
)
"""The fields of each kind of node. A node without a type of its own is called by the field that has it."""
_OPERATIONS = frozenset(
    [
        "ARRAY_CONSTRUCTOR",
        "ARRAY_EXTRACT",
        "ARRAY_SLICE",
        "ARROW",
        "COMPARE_IN",
        "COMPARE_NOT_IN",
        "GROUPING_FUNCTION",
        "OPERATOR_COALESCE",
        "OPERATOR_IS_NOT_NULL",
        "OPERATOR_IS_NULL",
        "OPERATOR_NOT",
        "OPERATOR_NULLIF",
        "OPERATOR_TRY",
        "OPERATOR_UNPACK",
        "STRUCT_EXTRACT",
    ]
)
"""The types of an expression of class OPERATOR."""
_PLACES: Mapping[str, str] = MappingProxyType(
    {
        "select_list": "the select list",
        "from_table": "FROM",
        "where_clause": "WHERE",
        "group_expressions": "GROUP BY",
        "having": "HAVING",
        "qualify": "QUALIFY",
        "orders": "ORDER BY",
        "limit": "LIMIT",
        "offset": "OFFSET",
        "distinct_on_targets": "DISTINCT ON",
        "condition": "ON",
        "order_bys": "ORDER BY",
        "filter": "FILTER",
        "filter_expr": "FILTER",
    }
)
"""What a caller calls the place of a field."""
_OWN_SCHEMAS = ("", "main")
"""Schemas of DuckDB's functions: its parser writes one of them before the functions that its grammar calls."""
_PLACES_SHOWN = 3
"""The innermost places that an error names."""
_NEAR_MAX = 2
"""Functions of a like name that an error names."""
_NEAR_MIN = 0.75
"""How like a name must be: 1 is the same."""


class QueryRefused(Exception):
    """The query has what is not allowed. is_function: it is a function."""

    def __init__(self, text: str, *, is_function: bool = False) -> None:
        super().__init__(text)
        self.is_function = is_function


def check_tree(
    told: Mapping[str, Any], tables: Collection[str], columns: Collection[str], macros: Collection[str]
) -> None:
    """Check a query. told: what DuckDB answers to ``SERIALIZED``. tables: that it may read, beside its own. columns: of
    these tables. macros: functions that the door has defined. Raises QueryRefused."""
    if str(told.get("error_message")).startswith("Only SELECT"):  # can be told as JSON
        raise QueryRefused("a query is one SELECT, and PIVOT in it names its columns by IN")
    if told["error"]:
        raise QueryRefused(f"{str(told.get('error_type', '')).capitalize()} Error: {told.get('error_message')}")
    statements = told.get("statements", ())
    if len(statements) != 1:
        raise QueryRefused(f"a query is one SELECT; {len(statements)} statements are given")
    _TreeCheck(
        frozenset(name.lower() for name in tables),
        {name.lower() for name in columns},
        FUNCTIONS | {name.lower() for name in macros},
    ).run(statements)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the tree that is to be checked. field: that has it. places: where it stands, outermost first. own: the
    tables of WITH that it may read, in lower case."""

    value: Any
    field: str
    places: tuple[str, ...] = ()
    own: frozenset[str] = frozenset()


@dataclass(slots=True)
class _TreeCheck:
    """The check of one query. names: columns of its tables, and all that the query calls by a name of its own."""

    tables: frozenset[str]
    names: set[str]
    functions: frozenset[str]
    _column_functions: list[tuple[str, _Part]] = field(default_factory=list)
    """Columns that are called as a function is."""

    def run(self, statements: Sequence[Any]) -> None:
        left = [_Part(statements, "statements")]
        while left:
            part = left.pop()
            if isinstance(part.value, dict):
                left += self._parts(part)
            elif isinstance(part.value, list):
                nested = (each for each in part.value if isinstance(each, dict | list))
                left += [_Part(each, part.field, part.places, part.own) for each in nested]
        for name, part in self._column_functions:
            if name not in self.names:
                raise self._refused_function(name, part)

    def _parts(self, part: _Part) -> list[_Part]:
        """What a node has, once the node itself is checked."""
        node: Mapping[str, Any] = part.value
        kind = _kind_of(node, part.field)
        known = _FIELDS.get(kind)
        if known is None:
            raise QueryRefused(f"{kind.removeprefix('.')}{_at(part)}: a query has no such part here")
        for name in node:
            if name not in known:
                raise QueryRefused(f"{name} of {kind.removeprefix('.')}{_at(part)}: a query has no such part here")
        self._take_names(node)
        if kind in ("FUNCTION", "WINDOW"):
            self._check_function(part, TABLE_FUNCTIONS if part.field == "function" else self.functions)
        elif kind == "OPERATOR" and node.get("type") not in _OPERATIONS:
            raise QueryRefused(f"{node.get('type')}{_at(part)}: a query has no such operator here")
        elif kind == "BASE_TABLE":
            self._check_table(part)
        elif kind == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = str(node["column_names"][0]).lower()
            if name in _COLUMN_FUNCTIONS:
                self._column_functions.append((name, part))
        return self._inner(part, kind)

    def _inner(self, part: _Part, kind: str) -> list[_Part]:
        node: Mapping[str, Any] = part.value
        own = part.own
        found: list[_Part] = []
        if kind == ".cte_map":
            for entry in node.get("map", ()):  # each sees those before it
                found.append(_Part(entry, "map", (*part.places, f"WITH {entry['key']}"), own))
                own = own | {str(entry["key"]).lower()}
            return found
        if "cte_map" in node:
            found.append(_Part(node["cte_map"], "cte_map", part.places, own))
            own = own | {str(entry["key"]).lower() for entry in node["cte_map"].get("map", ())}
        for name, value in node.items():
            if name == "cte_map" or not isinstance(value, dict | list):
                continue
            recurses = kind == "RECURSIVE_CTE_NODE" and name == "right"  # elsewhere the name is another table's
            read = own | {str(node["cte_name"]).lower()} if recurses else own
            found.append(_Part(value, name, _places(part, kind, _PLACES.get(name)), read))
        return found

    def _take_names(self, node: Mapping[str, Any]) -> None:
        self.names.add(str(node.get("alias", "")).lower())
        for listed in ("column_name_alias", "aliases", "using_columns", "unpivot_names"):
            self.names.update(str(name).lower() for name in node.get(listed, ()))

    def _check_function(self, part: _Part, allowed: Collection[str]) -> None:
        name = str(part.value.get("function_name", ""))
        if part.value.get("schema", "") not in _OWN_SCHEMAS or part.value.get("catalog"):
            named = ".".join(filter(None, (part.value.get("catalog"), part.value.get("schema"), name)))
            raise QueryRefused(
                f"function {named!r}{_at(part)}: functions are called without a schema", is_function=True
            )
        if name.lower() not in allowed:
            raise self._refused_function(name, part)

    def _refused_function(self, name: str, part: _Part) -> QueryRefused:
        if part.field == "function":
            listed = ", ".join(TABLE_FUNCTIONS)
            text = f"{name}(...){_at(part)}: a query reads views; the functions that FROM takes are {listed}"
        else:
            near = get_close_matches(name.lower(), sorted(self.functions), _NEAR_MAX, _NEAR_MIN)
            advice = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            text = f"function {name!r}{_at(part)}: queries have no such function here{advice}"
        return QueryRefused(text, is_function=True)

    def _check_table(self, part: _Part) -> None:
        node = part.value
        path = [node.get("catalog_name"), node.get("schema_name"), node.get("table_name")]
        name = ".".join(str(each) for each in path if each)
        if name.lower() not in self.tables | part.own or path[0] or path[1]:
            raise QueryRefused(f"table {name!r}{_at(part)}: a query reads views, and no other table")


def _kind_of(node: Mapping[str, Any], field: str) -> str:
    """The class of an expression, the type of another node, or else a point and the field that has the node."""
    for tag in ("class", "type"):
        if isinstance(node.get(tag), str):
            return str(node[tag])
    return f".{field}"


def _places(part: _Part, kind: str, place: str | None) -> tuple[str, ...]:
    """Where a field of a node stands. kind: of the node. place: what a caller calls the field, if it has a name."""
    if place is None or (kind == "ORDER_MODIFIER" and part.field == "order_bys"):  # the function has the name
        return part.places
    if kind in ("FUNCTION", "WINDOW"):
        return (*part.places[:-1], " in ".join((place, *part.places[-1:])))
    return (*part.places, place)


def _at(part: _Part) -> str:
    """Where a part stands, as an error says it: `` in WHERE of the subquery in FROM``."""
    shown = part.places[-_PLACES_SHOWN:]
    return f" in {' of the subquery in '.join(reversed(shown))}" if shown else ""
