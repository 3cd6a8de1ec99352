"""The settings of a store: from the environment first, else from Hadoop's configuration; and what Hadoop is lent."""

import pytest

from upriver.lake.address import ObjectAddress, object_address
from upriver.lake.store_options import no_hadoop, s3a_settings, store_options

KEYS = {"AWS_ACCESS_KEY_ID": "env-key", "AWS_SECRET_ACCESS_KEY": "env-secret"}
HADOOP = {
    "fs.s3a.access.key": "key",
    "fs.s3a.secret.key": "secret",
    "fs.s3a.session.token": "token",
    "fs.s3a.endpoint": "store:9000",
    "fs.s3a.endpoint.region": "there",
    "fs.s3a.connection.ssl.enabled": "false",
}


def place(root: str) -> ObjectAddress:
    address = object_address(root)
    assert address is not None
    return address


BUCKET = place("s3://bucket/lake")


def test_hadoops_settings_are_taken_where_the_environment_has_none() -> None:
    assert store_options(BUCKET, {}, HADOOP.get) == {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "session_token": "token",
        "endpoint": "http://store:9000",
        "region": "there",
    }
    assert store_options(BUCKET, {}) == {}


def test_keys_come_from_one_place() -> None:
    """A session token of Spark's does not belong to keys of the environment."""
    options = store_options(BUCKET, KEYS, HADOOP.get)
    assert options.keys() == {"access_key_id", "secret_access_key", "endpoint", "region"}
    assert (options["access_key_id"], options["secret_access_key"]) == ("env-key", "env-secret")


def test_a_role_of_the_environment_wins_over_keys_of_spark() -> None:
    options = store_options(BUCKET, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, HADOOP.get)
    assert options.keys() == {"endpoint", "region"}


def test_the_bucket_has_settings_of_its_own() -> None:
    hadoop = {**HADOOP, "fs.s3a.bucket.bucket.endpoint": "https://mine", "fs.s3a.bucket.other.access.key": "no"}
    options = store_options(BUCKET, {}, hadoop.get)
    assert (options["endpoint"], options["access_key_id"]) == ("https://mine", "key")


@pytest.mark.parametrize("endpoint", ["s3.amazonaws.com", "https://s3.eu-west-1.amazonaws.com", ""])
def test_amazons_own_endpoint_follows_from_the_region(endpoint: str) -> None:
    assert store_options(BUCKET, {}, {"fs.s3a.endpoint": endpoint}.get) == {}


@pytest.mark.parametrize(
    ("environ", "region"),
    [
        ({"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, "a"),
        ({"AWS_DEFAULT_REGION": "b"}, "b"),
        ({"AWS_REGION": ""}, "there"),
    ],
)
def test_a_region_has_two_names(environ: dict[str, str], region: str) -> None:
    assert store_options(BUCKET, environ, HADOOP.get)["region"] == region


def test_other_stores_read_their_environment() -> None:
    environ = {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json", "AZURE_STORAGE_ACCOUNT_NAME": "acc", **KEYS}
    assert store_options(place("gs://b/x"), environ, HADOOP.get) == {"application_credentials": "/key.json"}
    assert store_options(place("az://c/x"), environ, HADOOP.get) == {"account_name": "acc"}


def test_hadoop_is_lent_what_it_lacks_for_the_bucket() -> None:
    environ = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "here"}
    options = store_options(BUCKET, environ)
    bucket = "fs.s3a.bucket.bucket"
    everything = {
        f"{bucket}.access.key": "env-key",
        f"{bucket}.secret.key": "env-secret",
        f"{bucket}.endpoint": "http://127.0.0.1:9000",
        f"{bucket}.endpoint.region": "here",
        f"{bucket}.path.style.access": "true",
    }
    assert s3a_settings("bucket", options, no_hadoop) == everything
    assert s3a_settings("bucket", options, HADOOP.get) == {f"{bucket}.path.style.access": "true"}
    assert s3a_settings("bucket", {}, no_hadoop) == {}
