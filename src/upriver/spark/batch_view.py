"""Views as Spark itself computes them, from the tables as they are in the lake.

So a view can be read whole of which the workers keep only the keys that somebody has looked up.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from upriver.client.keys import distinct_keys
from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.plan.plan import TableSpec
from upriver.spark.lake_tables import table_as_of
from upriver.spark.typer import own_session
from upriver.sql.sql import over_tables

PLACE = "place of the key"
"""A column's name, beside those of a view."""


def view_as_of(
    spark: SparkSession,
    root: str,
    sql: str,
    tables: Mapping[str, TableSpec],
    views: Mapping[str, str],
    epoch: Epoch,
    timezone: str,
) -> DataFrame:
    """A view as it is once ``epoch`` is over, as a DataFrame of ``spark``. Every action on it reads that epoch anew.

    sql, tables, views, timezone: those from which the view was compiled; of ``views`` those that are read must be
    there, and as they were then. Columns, types included, are those of its plan. A row from which the view cannot be
    computed makes the action fail, in Spark's words, even if its table has such rows set aside.
    """
    session = own_session(spark, timezone)  # in which names mean what they meant when the view was compiled
    for name, table in tables.items():
        table_as_of(session, root, table, epoch).createOrReplaceTempView(f"`{name}`")
    rows = session.sql(over_tables(sql, views))
    # The user's session must be the one that the result belongs to, or its temporary views of it would be ours. What is
    # put together belongs to the session of the first part; Spark's optimizer leaves none of that one.
    return spark.createDataFrame([], rows.schema).limit(0).union(rows)


def rows_of_keys(view: DataFrame, keys: pa.RecordBatch) -> pa.Table:
    """A view's rows of some keys, in the order in which the keys are given; each key once. A null is a key like any
    other. keys: the view's key columns. Blocks while Spark computes."""
    asked, _ = distinct_keys(keys, hash64(keys.columns, keys.num_rows))
    names = [f"key {place}" for place in range(asked.num_columns)]
    places = pa.array(np.arange(asked.num_rows))
    table = pa.Table.from_arrays([*asked.columns, places], [*names, PLACE])
    # In a session whose zone pyarrow can name. Points in time are the same in any; a wall clock must not become one.
    session = own_session(view.sparkSession, "UTC")
    wanted = session.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
    is_asked = [
        view[f"`{own}`"].eqNullSafe(wanted[f"`{name}`"]) for own, name in zip(keys.schema.names, names, strict=True)
    ]
    found = view.join(F.broadcast(wanted), is_asked).orderBy(PLACE)
    return found.select(view["*"]).toArrow()
