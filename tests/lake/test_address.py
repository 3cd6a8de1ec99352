"""Addresses of roots: what each names, for Upriver and for Spark, and what is none."""

import pickle

import pytest

from upriver.errors import DeclarationError
from upriver.lake.address import ObjectAddress, Root, object_address, spark_address


@pytest.mark.parametrize(
    ("root", "address", "sparks"),
    [
        ("s3://b/a/lake", ObjectAddress("s3", "b", "a/lake"), "s3a://b/a/lake"),
        ("s3a://b/a/lake/", ObjectAddress("s3", "b", "a/lake"), "s3a://b/a/lake"),
        ("S3://b", ObjectAddress("s3", "b", ""), "s3a://b"),
        ("gs://b/a b", ObjectAddress("gs", "b", "a b"), "gs://b/a b"),
        (
            "abfss://c@acc.dfs.core.windows.net/x",
            ObjectAddress("azure", "c", "x", "acc", "core.windows.net"),
            "abfss://c@acc.dfs.core.windows.net/x",
        ),
        (
            "abfs://c@acc.dfs.core.chinacloudapi.cn",
            ObjectAddress("azure", "c", "", "acc", "core.chinacloudapi.cn"),
            "abfss://c@acc.dfs.core.chinacloudapi.cn",
        ),
        ("az://c/x", ObjectAddress("azure", "c", "x"), "abfss://c@known.dfs.core.windows.net/x"),
    ],
)
def test_an_address_is_one_place_for_both(root: str, address: ObjectAddress, sparks: str) -> None:
    assert object_address(root) == address
    assert spark_address(Root(root, {"account_name": "known"})) == sparks


def test_a_directory_is_no_address_of_a_store() -> None:
    assert object_address("/data/lake") is None
    assert spark_address("/data/lake") == "/data/lake"


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("gopher://a/b", "root='gopher://a/b': a root is a directory, or begins with s3://, .* or az://"),
        ("hdfs://name/lake", "a root is a directory, or begins with"),
        ("s3:///lake", "'' is no name of a bucket; give s3://bucket/directory"),
        ("s3://b/a//c", "no empty part"),
        ("s3://b/../c", "no empty part"),
        ("s3://b/c?region=x", r"'\?' and '#'"),
        ("abfss://c@acc.example.com/x", "give abfss://container@account.dfs.core.windows.net/directory"),
    ],
)
def test_what_is_no_address(root: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        object_address(root)


@pytest.mark.parametrize("root", ["s3://key:secret@bucket/lake", "gopher://key:secret@host/lake"])
def test_keys_in_an_address_are_not_repeated(root: str) -> None:
    with pytest.raises(DeclarationError) as error:
        object_address(root)
    assert "secret" not in str(error.value)


def test_an_account_must_be_known() -> None:
    with pytest.raises(DeclarationError, match="set AZURE_STORAGE_ACCOUNT_NAME, or give abfss://c@account"):
        spark_address("az://c/x")


def test_a_root_keeps_its_settings_on_its_way_to_a_task() -> None:
    root = pickle.loads(pickle.dumps(Root("s3://b/lake", {"access_key_id": "k"})))
    assert isinstance(root, Root)
    assert (root, root.options) == ("s3://b/lake", {"access_key_id": "k"})
