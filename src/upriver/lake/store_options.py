"""The settings that open an object store: from the environment, or from Hadoop's configuration as Spark has it.

The driver collects them once, and its tasks get them with the root (:class:`upriver.lake.address.Root`). A process that
knows only the address of a root uses its own environment.
"""

from collections.abc import Callable, Mapping

from upriver.lake.address import ObjectAddress

HadoopSetting = Callable[[str], str | None]
"""A value of Hadoop's configuration by its name."""

_KEYS = {
    "access_key_id": ("AWS_ACCESS_KEY_ID", "access.key"),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY", "secret.key"),
    "session_token": ("AWS_SESSION_TOKEN", "session.token"),
}
"""S3's keys, which are taken together from one place: the variable, and what follows ``fs.s3a.``."""
_OTHER_IDENTITIES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""With one of these, a process in this environment gets its keys elsewhere."""
_PLACES = {
    "endpoint": (("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "endpoint"),
    "region": (("AWS_REGION", "AWS_DEFAULT_REGION"), "endpoint.region"),
}
_OTHER_STORES = {
    "gs": {
        "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
        "service_account": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        "application_credentials": ("GOOGLE_APPLICATION_CREDENTIALS",),
    },
    "azure": {
        "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
        "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
        "sas_key": ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
        "client_id": ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
        "client_secret": ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
        "tenant_id": ("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"),
        "endpoint": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    },
}
PATH_STYLE = "path.style.access"
"""With it, as with ``obstore``, the bucket is in the path of a request, and not in the name of the host."""
AMAZON = ".amazonaws.com"
"""The end of the name of Amazon's own endpoints, which ``obstore`` makes up from the region."""


def no_hadoop(_: str) -> str | None:
    """For a process without Spark."""
    return None


def store_options(
    address: ObjectAddress, environ: Mapping[str, str], hadoop: HadoopSetting = no_hadoop
) -> dict[str, str]:
    """The settings for one store, by the names that ``obstore`` gives them; those that are not set are left out."""
    if address.store != "s3":
        return _first_set(_OTHER_STORES[address.store], environ)
    options = _keys(address, environ, hadoop)
    for option, (variables, name) in _PLACES.items():
        found = _first(variables, environ) or s3a_setting(address.bucket, name, hadoop)
        if found and not (option == "endpoint" and found.endswith(AMAZON)):
            options[option] = found
    if "endpoint" in options:
        options["endpoint"] = _with_scheme(options["endpoint"], address.bucket, hadoop)
    return options


def _keys(address: ObjectAddress, environ: Mapping[str, str], hadoop: HadoopSetting) -> dict[str, str]:
    own = {option: environ[variable] for option, (variable, _) in _KEYS.items() if environ.get(variable)}
    if own or _first(_OTHER_IDENTITIES, environ):
        return own
    sparks = {option: s3a_setting(address.bucket, name, hadoop) for option, (_, name) in _KEYS.items()}
    return {option: value for option, value in sparks.items() if value}


def s3a_setting(bucket: str, name: str, hadoop: HadoopSetting) -> str | None:
    """Hadoop's setting for the bucket, or for all; ``None`` if it is empty."""
    return hadoop(f"fs.s3a.bucket.{bucket}.{name}") or hadoop(f"fs.s3a.{name}") or None


def s3a_settings(bucket: str, options: Mapping[str, str], hadoop: HadoopSetting) -> dict[str, str]:
    """What Hadoop lacks to open a bucket with these options: settings of the bucket alone."""
    lacking: dict[str, str] = {}
    if s3a_setting(bucket, "access.key", hadoop) is None:
        lacking |= {name: options[option] for option, (_, name) in _KEYS.items() if option in options}
    for option, (_, name) in _PLACES.items():
        if option in options and s3a_setting(bucket, name, hadoop) is None:
            lacking[name] = options[option]
    if "endpoint" in options and not hadoop(f"fs.s3a.bucket.{bucket}.{PATH_STYLE}"):
        lacking[PATH_STYLE] = "true"
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in lacking.items()}


def _with_scheme(endpoint: str, bucket: str, hadoop: HadoopSetting) -> str:
    """Hadoop's endpoints may have no scheme."""
    if "://" in endpoint:
        return endpoint
    has_tls = s3a_setting(bucket, "connection.ssl.enabled", hadoop) != "false"
    return f"{'https' if has_tls else 'http'}://{endpoint}"


def _first_set(names: Mapping[str, tuple[str, ...]], environ: Mapping[str, str]) -> dict[str, str]:
    found = {option: _first(variables, environ) for option, variables in names.items()}
    return {option: value for option, value in found.items() if value}


def _first(variables: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    return next((environ[variable] for variable in variables if environ.get(variable)), None)
