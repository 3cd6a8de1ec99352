"""Asks Spark for the answers that tests/conformance has recorded, and writes them anew: record.py [NAME ...]

NAME: of a file, without its ending; all of them otherwise. A query whose answer is the same changes no line.
"""

import os
import sys
import time

from conformance_kit import read_file
from conformance_spark import answers_of_spark
from expression_spark import expressions_of_spark
from jvm import start_quickly
from recorded_answers import FOLDER, rows_path, write_answers
from session import session


def main(names: list[str]) -> None:
    os.environ["TZ"] = "UTC"  # in which PySpark gives a TIMESTAMP to Python
    time.tzset()
    start_quickly()
    spark = session("local[2]", {"spark.sql.session.timeZone": "UTC"})
    spark.sparkContext.setLogLevel("OFF")
    for path in [FOLDER / f"{name}.test" for name in names] or sorted(FOLDER.glob("*.test")):
        file = read_file(path)
        expressions = [text for group in file.expressions for text in group.texts]
        said = answers_of_spark(spark, file, file.views) | expressions_of_spark(spark, file, expressions)
        write_answers(rows_path(path), said)
        print(f"{path.stem}: {len(said)} answers", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
