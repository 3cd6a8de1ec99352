"""The table of the API: every operation once. The routes and the OpenAPI description are made from it."""

from upriver.client.rescale import STRATEGIES
from upriver.doors.http import changes, operations, views
from upriver.doors.http.messages import JSON_TYPE, Endpoint, HttpParameter, Json
from upriver.doors.http.views import ARROW_TYPE, CSV_TYPE, NDJSON_TYPE
from upriver.net.handshake import Role

_LIMITS: tuple[HttpParameter, ...] = (
    HttpParameter("at_least", {"type": "integer", "minimum": 0}, "An epoch that the rows must reflect."),
    HttpParameter(
        "max_age",
        {"type": "number", "minimum": 0},
        "Seconds: the rows must have everything that the sources had offered so long ago.",
    ),
    HttpParameter(
        "allow_warming",
        {"type": "boolean"},
        "Answer although the app does not yet reflect the rows from before its start.",
    ),
    HttpParameter(
        "timeout", {"type": "number", "minimum": 0, "maximum": views.TIMEOUT_S_MAX}, "Seconds that the lookup may take."
    ),
)
_KEYS: Json = {
    "type": "array",
    "maxItems": views.KEYS_MAX,
    "items": {},
    "description": "Keys: a value, for a key of one column; a list of values, or an object by column, for any.",
}
_LOOKUP: Json = {
    "type": "object",
    "required": ["keys"],
    "additionalProperties": False,
    "properties": {
        "keys": _KEYS,
        **{limit.name: {**limit.schema, "description": limit.description} for limit in _LIMITS},
    },
}
_RESCALE: Json = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "workers": {"type": "integer", "minimum": 1, "description": "How many workers there shall be."},
        "moves": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "Instead of workers: the new worker of each vnode that moves.",
        },
        "strategy": {"type": "string", "enum": list(STRATEGIES), "default": "icadd"},
        "keys_max": {"type": "integer", "minimum": 1, "description": "Keys that move at once."},
    },
}
_EVICT: Json = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "keys": {**_KEYS, "type": ["array", "null"], "description": "Keys, as in a lookup; null or left out: all."}
    },
}
_TICKET = HttpParameter(
    "ticket", {"type": "integer", "minimum": 0}, "Of the rescale; left out: of the one that is under way."
)
_KEY = HttpParameter(
    "key",
    {"type": "array", "items": {"type": "string"}},
    "A key, any number of times: a value, or a JSON list of values for a key of several columns. Keys may also be "
    "given by the names of their columns, each equally often: `?customer=1&day=2026-01-01`.",
    many=True,
)
_ROWS = {JSON_TYPE: "Rows", ARROW_TYPE: None, CSV_TYPE: None, NDJSON_TYPE: None}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/v1/session",
        name="getSession",
        summary="What the caller's token or session may do",
        answer=operations.session,
        gives={JSON_TYPE: "Session"},
    ),
    Endpoint(
        method="GET",
        path="/v1/status",
        name="getStatus",
        summary="The status of the app",
        description="Epochs, tables and their sources, views, workers, the rescale under way.",
        answer=operations.status,
        gives={JSON_TYPE: "Status"},
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        name="getMetrics",
        summary="Metrics for Prometheus",
        answer=operations.metrics,
        gives={operations.METRICS_TYPE: None},
    ),
    Endpoint(
        method="GET",
        path="/v1/river",
        name="getRiver",
        summary="One picture of the app",
        description="What the page draws: tables with the age of each, views and their regions, workers, the owner of "
        "each vnode, the rescale under way, and what is wrong, in plain words.",
        answer=operations.river,
        gives={JSON_TYPE: "River"},
    ),
    Endpoint(
        method="GET",
        path="/v1/river/events",
        name="followRiver",
        summary="A picture of the app each second, as server-sent events",
        description="Events named `river`. The first has the whole `history`, later ones its new points.",
        events=operations.river_events,
        gives={"text/event-stream": None},
    ),
    Endpoint(
        method="GET",
        path="/v1/views",
        name="listViews",
        summary="All views and their keys",
        answer=views.views,
        gives={JSON_TYPE: "Views"},
    ),
    Endpoint(
        method="GET",
        path="/v1/views/{view}",
        name="getView",
        summary="A view's description, or its rows by key",
        description="Without a key, the view's description is the answer.",
        answer=views.view,
        parameters=(_KEY, *_LIMITS),
        takes_any=True,
        gives={JSON_TYPE: "ViewOrRows", ARROW_TYPE: None, CSV_TYPE: None, NDJSON_TYPE: None},
    ),
    Endpoint(
        method="POST",
        path="/v1/views/{view}/lookup",
        name="lookUp",
        summary="A view's rows by keys in the body",
        description="The rows are in the order of the keys, all as of one epoch. Keys that the view does not have give "
        "no rows. As an Arrow stream the body has a column for each of the key, and limits are in the query.",
        answer=views.lookup,
        parameters=_LIMITS,
        body=_LOOKUP,
        gives=_ROWS,
    ),
    Endpoint(
        method="GET",
        path="/v1/views/{view}/changes",
        name="followChanges",
        summary="A view's changes, as server-sent events",
        description="Of a view that was declared with `changes=True`. An event `changes` has a version's changes, with "
        "`_change_type` in each; its id is the version, so `Last-Event-ID` resumes. A version with many changes comes "
        "in several events; only its last event, `is_last`, has the id. An event `through` names the version through "
        "which the app has sent all changes, and `problem` why the stream ends.",
        events=changes.changes,
        parameters=(
            HttpParameter(
                "since",
                {"type": "string"},
                "The version after which changes are sent; `now` for later ones alone; left out: from the start, with "
                "all rows as inserts.",
            ),
            _KEY,
        ),
        takes_any=True,
        gives={"text/event-stream": None},
    ),
    Endpoint(
        method="POST",
        path="/v1/views/{view}/evict",
        name="evict",
        summary="Evict keys of a partial view",
        role=Role.OPERATOR,
        answer=operations.evict,
        body=_EVICT,
        gives={JSON_TYPE: "Evicted"},
    ),
    Endpoint(
        method="POST",
        path="/v1/rescale",
        name="beginRescale",
        summary="Begin a rescale",
        role=Role.OPERATOR,
        answer=operations.begin_rescale,
        body=_RESCALE,
        gives={JSON_TYPE: "Progress"},
        status=202,
    ),
    Endpoint(
        method="GET",
        path="/v1/rescale",
        name="getRescale",
        summary="The progress of a rescale",
        answer=operations.rescale_progress,
        parameters=(_TICKET,),
        gives={JSON_TYPE: "Progress"},
    ),
    Endpoint(
        method="DELETE",
        path="/v1/rescale",
        name="abortRescale",
        summary="Abort a rescale",
        description="Vnodes that are on their way arrive; those not begun stay.",
        role=Role.OPERATOR,
        answer=operations.abort_rescale,
        parameters=(_TICKET,),
        gives={JSON_TYPE: "Progress"},
        status=202,
    ),
    Endpoint(
        method="GET",
        path="/v1/rescales",
        name="listRescales",
        summary="The last rescales, oldest first",
        answer=operations.rescales,
        gives={JSON_TYPE: "Rescales"},
    ),
)
