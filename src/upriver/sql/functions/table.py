"""The table of Spark's functions: of each, how it is evaluated, its types, when it is NULL and when it raises.

The front end looks calls up here. The page *Functions* of the documents and the test that runs each function beside
Spark are made from it.
"""

import re
from collections.abc import Mapping

from upriver.sql.functions.arrays import ARRAYS, MAPS
from upriver.sql.functions.choices import CHOICES
from upriver.sql.functions.constructors import CONSTRUCTORS
from upriver.sql.functions.hashes import HASHES
from upriver.sql.functions.json_functions import JSON
from upriver.sql.functions.lambdas import LAMBDAS
from upriver.sql.functions.lists import LISTS
from upriver.sql.functions.numbers import BITS, CASTS, NUMBERS
from upriver.sql.functions.patterns import PATTERNS
from upriver.sql.functions.signatures import Function
from upriver.sql.functions.strings import BYTES, TEXTS
from upriver.sql.functions.times import TIMES
from upriver.sql.functions.urls import URLS

TABLE: Mapping[str, tuple[Function, ...]] = {
    "Choices": CHOICES,
    "Numbers": NUMBERS,
    "Bits": BITS,
    "Texts": TEXTS,
    "URLs": URLS,
    "JSON": JSON,
    "Regular expressions": PATTERNS,
    "Bytes and hashes": (*BYTES, *HASHES),
    "Dates and times": TIMES,
    "Casts": CASTS,
    "Lambdas": LAMBDAS,
    "Arrays, structs and maps": (*CONSTRUCTORS, *LISTS, *ARRAYS, *MAPS),
}
"""By topic."""

FUNCTIONS: Mapping[str, Function] = {
    name: function for functions in TABLE.values() for function in functions for name in function.all_names
}
"""By each of Spark's names."""


CHANGING = re.compile(
    "rand|random|randn|randstr|uniform|uuid|shuffle|now|curdate|localtime|localtimestamp|user|session_user|version|"
    "current_.*|monotonically_increasing_id|spark_partition_id|input_file_.*"
)
"""Names of functions that give another answer each time, or in each session."""

REFUSED: Mapping[str, str] = {
    "to_number": "Write CAST(replace(s, ',', '') AS DECIMAL(12,2)).",
    "try_to_number": "Write TRY_CAST(replace(s, ',', '') AS DECIMAL(12,2)).",
    "from_json": "Take the fields one by one: CAST(get_json_object(s, '$.price') AS DOUBLE).",
    "json_tuple": "Write get_json_object(s, '$.name') for each field.",
}
"""Functions that are not supported, and what to do instead."""
