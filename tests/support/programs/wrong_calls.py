"""What a script shows of wrong calls: the traceback of each on stderr, as Python prints it at the end of a script,
behind a line with its name.

usage: wrong_calls.py DIRECTORY
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from session import OUR_DAEMON, session

import upriver
from upriver.spark.session import local_session

ORDERS = "customer string, amount int"


def declarations(spark: Any, root: Path) -> dict[str, Callable[[], object]]:
    orders = spark.createDataFrame([("ada", 10)], ORDERS)
    app = upriver.App(spark, root)
    app.table("orders", orders, key="customer")
    app.table("notes", orders, key="customer")

    def view(sql: str, key: Any = "customer") -> Callable[[], object]:
        return lambda: app.view("wrong", sql, key=key)

    (root.parent / "file").write_text("not a directory")
    return {
        "typo": view("SELECT customer, count(*) AS n FORM orders GROUP BY customer"),
        "unclosed": view("SELECT customer, count(* AS n FROM orders GROUP BY customer"),
        "no such column": view("SELECT customer, sum(amonut) AS n FROM orders GROUP BY customer"),
        "no such table": view("SELECT customer FROM oders"),
        "no such function": view("SELECT customer, summ(amount) AS n FROM orders GROUP BY customer"),
        "wrong type": view("SELECT customer, amount + array(1) AS n FROM orders"),
        "wrong number of arguments": view("SELECT customer, upper(customer, 1) AS n FROM orders"),
        "unsupported": view("SELECT customer, rand() AS n FROM orders"),
        "no such key": view("SELECT customer, amount FROM orders", "costumer"),
        "sql is no text": view(17),  # type: ignore[arg-type]
        "name is taken": lambda: app.view("orders", "SELECT customer, amount FROM orders", key="customer"),
        "table's key": lambda: app.table("t", orders, key="costumer"),
        "deletes": lambda: app.table("t", orders, primary_key="customer", order_by="amount", deletes="amuont < 0"),
        "on_bad_row": lambda: app.table("t", orders, key="customer", on_bad_row="skip"),
        "retain": lambda: app.table("t", orders, key="customer", retain=("amount", "30 dayz")),
        "stateful map's source": lambda: app.stateful_map("m", "oders", "customer", len, "n int"),
        "stateful map's schema": lambda: app.stateful_map("m", "orders", "customer", len, "n itn"),
        "function's type": lambda: app.function("f", len, returns="itn", arguments="s string", deterministic=True),
        "option": lambda: upriver.App(spark, root, vnodes=17),
        "duration": lambda: upriver.App(spark, root, changes_retention="7 dayz"),
        "certificate": lambda: upriver.App(spark, root, tls_certificate="none.pem", tls_key="none.pem"),
        "root's scheme": lambda: upriver.App(spark, "ftp://lake").table("t", orders, key="customer"),
        "not running": lambda: app.lookup("orders", ["ada"]),
        "no address": lambda: upriver.connect(),
        "nothing at the address": lambda: upriver.connect("127.0.0.1:1", "t", timeout=1.0),
        "no port": lambda: upriver.connect("127.0.0.1", "t"),
        "root is a file": lambda: started(spark, root.parent / "file", orders, timeout=20.0),
        "too few slots": lambda: started(spark, root.parent / "slots", orders, workers=50),
        "slots of a session": lambda: local_session(workers=50),
        "nothing declared": lambda: upriver.App(spark, root.parent / "empty").start(),
    }


def started(spark: Any, root: Path, orders: Any, *, timeout: float = 60.0, **options: Any) -> upriver.App:
    app = upriver.App(spark, root, **{"workers": 1, "vnodes": 16, "ingest_tasks": 1, **options})
    app.table("orders", orders, key="customer")
    app.view("totals", "SELECT customer, sum(amount) AS n FROM orders GROUP BY customer", key="customer")
    return app.start(wait=True, timeout=timeout)


def requests(app: upriver.App, client: upriver.Client) -> dict[str, Callable[[], object]]:
    table = 'app.read("orders")'
    return {
        "start again": lambda: app.start(),
        "view": lambda: app.lookup("total", ["ada"]),
        f"a table, {table}": lambda: app.lookup("orders", ["ada"]),
        "key's type": lambda: app.lookup("totals", [17]),
        "key's columns": lambda: app.lookup("totals", [{"costumer": "ada"}]),
        "limit": lambda: app.lookup("totals", ["ada"], max_agee=1.0),  # type: ignore[call-arg]
        "timeout": lambda: app.lookup("totals", ["ada"], timeout="soon"),  # type: ignore[arg-type]
        "epoch": lambda: app.lookup("totals", ["ada"], at_least=10**6, timeout=0.2),
        "view to read": lambda: app.read("total"),
        "keys to read": lambda: app.read("totals", keys=[17]),
        "partitions": lambda: app.read("totals", partitions=0),
        "view to wait for": lambda: app.wait(view="total"),
        "changes": lambda: app.changes("totals"),
        "changes of a table": lambda: app.changes("orders"),
        "table of rejected rows": lambda: app.rejected("totals"),
        "explain": lambda: app.explain("total"),
        "explain a table": lambda: app.explain("orders"),
        "drop": lambda: app.drop_view("orders"),
        "evict": lambda: app.evict("total"),
        "workers": lambda: app.rescale(0),
        "strategy": lambda: app.rescale(2, strategy="fast"),
        "restart": lambda: app.restart_source("order"),
        "client's view": lambda: client.lookup_one("total", "ada"),
        "client's table": lambda: client.lookup_one("orders", "ada"),
        "client's subscription": lambda: client.subscribe("totals", since="yesterday"),
        "client's subscription to a table": lambda: client.subscribe("orders"),
        "client's changes": lambda: next(client.subscribe("totals")),
        "client's scan": lambda: list(client.scan("total")),
        "client's ticket": lambda: client.rescale_of(17).wait(),
        "token": lambda: upriver.connect(app.address, "wrong"),
        "address": lambda: app.http_address,
    }


def show(calls: dict[str, Callable[[], object]]) -> None:
    for name, call in calls.items():
        print(f"#### {name}", file=sys.stderr)
        try:
            call()
        except Exception:
            traceback.print_exc()
        else:
            print("raises nothing", file=sys.stderr)


def main(directory: Path) -> None:
    spark = session("local[3]", OUR_DAEMON)
    show(declarations(spark, directory / "declared"))
    app = started(spark, directory / "lake", spark.createDataFrame([("ada", 10)], ORDERS))
    client = upriver.connect(app.address, app.token)
    show(requests(app, client))
    client.close()
    app.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
