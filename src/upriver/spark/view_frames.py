"""Views as DataFrames over an app's leaves: what a DataFrame may be a view of, its words, and its rows of an epoch.

Each view has a *definition*: a DataFrame that reads leaves of tables only, so a view that it is made of may be dropped.
Spark computes a view's rows of any epoch from its definition, with the tables of that epoch in place of the leaves.
"""

import json
import re
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from upriver.errors import DeclarationError
from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.logs import place_of_caller
from upriver.plan.plan import FRAME_OF, TableSpec
from upriver.plan.source import FrameSource
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.leaf_plans import frame_of, leaf_name
from upriver.spark.leaves import Leaves
from upriver.spark.session import ZONE, checked_settings
from upriver.spark.tables import table_as_of
from upriver.sql.leaves import LEAF_PREFIX


class ViewFrames:
    """The definitions of an app's views."""

    def __init__(
        self, spark: SparkSession, leaves: Leaves, analyser: SparkAnalyser, tables: Mapping[str, TableSpec]
    ) -> None:
        """spark: the user's session. analyser: of the app. tables: those that are declared, which may change."""
        self._spark, self._leaves, self._analyser, self._tables = spark, leaves, analyser, tables
        self._views: dict[str, DataFrame] = {}
        """The definition of each view, in the app's own session; a stateful map is its own leaf there."""

    def given(self, name: str, frame: DataFrame, schemas: Mapping[str, pa.Schema]) -> tuple[FrameSource, DataFrame]:
        """A view that a user gives as a DataFrame, checked: where it is written, and its definition. schemas: of the
        app's views.

        Raises DeclarationError, with the place in Python, if it reads anything but tables and views of the app.
        """
        self._check(name, frame, schemas)
        source = FrameSource(name, words_of(self._leaves, frame), caller=place_of_caller())
        return source, self.over_tables(frame)

    def over_tables(self, frame: DataFrame) -> DataFrame:
        """The same DataFrame with the definitions of views in place of their leaves."""
        read = [one for one in self._leaves.names_of(frame) if one in self._views]
        given = {leaf_name(self._leaves.app, one): self._views[one] for one in read}
        return self._leaves.plans.rewritten(frame.sparkSession, frame, given) if given else frame

    @property
    def definitions(self) -> Mapping[str, DataFrame]:
        """The definition of each view."""
        return self._views

    def keep(self, name: str, definition: DataFrame) -> None:
        """Keep the definition of a view, where a temporary view of it is none of the user's."""
        self._views[name] = frame_of(self._analyser.session, definition._jdf.queryExecution().analyzed())

    def keep_map(self, name: str, schema: pa.Schema) -> None:
        """Keep a stateful map with these columns."""
        self._views[name] = self._leaves.own(name, schema)

    def forget(self, name: str) -> None:
        """The view is dropped."""
        del self._views[name]

    def as_of(
        self,
        name: str,
        root: str,
        epoch: Epoch,
        micros: int | None,
        pruned: Mapping[str, tuple[str, ...]],
        wanted: Hashes | None,
    ) -> DataFrame:
        """A view at the end of ``epoch``, as a DataFrame of the user's session. Each action reads that epoch anew.

        micros: what the clock shows, since 1970; ``None``: no clock is read. pruned: tables, with an index of each:
        only rows are read that have one of the ``wanted`` hash64 by it. A row from which the view cannot be computed
        makes the action fail, in Spark's words, even if its table has such rows set aside.
        """
        frame, session, given = self._views[name], self._analyser.session, dict[str, DataFrame]()
        for table in self._leaves.names_of(frame):
            index = pruned.get(table)
            hashes = None if index is None else wanted
            rows = table_as_of(session, root, self._tables[table], epoch, index, hashes)
            given[leaf_name(self._leaves.app, table)] = rows
        return self._leaves.plans.rewritten(self._spark, frame, given, micros)

    def _check(self, name: str, frame: DataFrame, schemas: Mapping[str, pa.Schema]) -> None:
        if not isinstance(frame, ClassicFrame):
            raise DeclarationError(f"view {name!r}: its DataFrame is of Spark Connect, and not of the app's session")
        if frame.sparkSession.sparkContext is not self._spark.sparkContext:
            raise DeclarationError(f"view {name!r}: its DataFrame is of another Spark session than the app")
        if frame.sparkSession is not self._spark and (zone := checked_settings(frame.sparkSession)[ZONE]) != (
            own := self._analyser.timezone
        ):
            raise DeclarationError(f"view {name!r}: its DataFrame's session has {ZONE} = {zone}, and the app has {own}")
        caller = place_of_caller()
        for other in self._leaves.plans.others(frame, self._leaves.app):
            raise DeclarationError(
                f"view {name!r}, {other.place or caller}: {other.words}, and not a table or view of this app. "
                "Declare it by app.table(), and use the DataFrame that this returns"
            )
        declared = {**{one: table.schema for one, table in self._tables.items()}, **schemas}
        for one, columns in self._leaves.plans.schemas_of(frame, self._leaves.app):
            if one not in declared:
                raise DeclarationError(f"view {name!r}, {caller}: it reads {one!r}, which has been dropped")
            if StructType.fromJson(json.loads(columns)) != from_arrow_schema(declared[one], prefer_timestamp_ntz=True):
                raise DeclarationError(
                    f"view {name!r}, {caller}: it reads {one!r} as it was before it was declared anew. Use the "
                    "DataFrame that its declaration has returned"
                )


_ID = re.compile(r"#\d+L?\b")
_LEAF = re.compile(rf"(?:Python)?MapInArrow {LEAF_PREFIX}[0-9a-f]+:(?P<name>.*)\(id#\d+L?\)#\d+L?, (?P<columns>\[.*\])")


def words_of(leaves: Leaves, frame: DataFrame) -> str:
    """The plan of a DataFrame in Spark's words, the same each time that it is made: columns are numbered anew, and
    leaves are shown by the names of their tables and views."""
    lines, is_of_leaf = [FRAME_OF], False
    for line in leaves.plans.words(frame).strip().splitlines():
        if is_of_leaf:  # the numbers of its partitions
            is_of_leaf = False
            continue
        found = _LEAF.search(line)
        is_of_leaf = found is not None
        lines.append(line if found is None else f"{line[: found.start()]}{found['name']} {found['columns']}")
    numbers: dict[str, int] = {}
    text = "\n".join(lines)
    return _ID.sub(lambda found: f"#{numbers.setdefault(found[0], len(numbers) + 1)}", text)
