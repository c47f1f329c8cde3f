"""What images mean, asked of a real registry: every stored form, moved tags, what is gone (E42-E45)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.registry import ARCHITECTURE, FOREIGN, Registry, running_registry
from trainshed.content.registry import ImageRefused, RegistryClient, RegistryUnavailable
from trainshed.model.images import RegistryRules, machine_architecture, parse_mirror


@pytest.fixture
def client() -> Iterator[RegistryClient]:
    made = RegistryClient(RegistryRules(), attempts=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def stored(registry: Registry) -> dict[str, str]:
    """Repositories below ``forms``, and the digest of what each holds."""
    ours, other = registry.image(), registry.image(architecture=FOREIGN)
    return {
        "forms/oci": registry.push(ours, "forms/oci"),
        "forms/docker": registry.push(ours, "forms/docker", docker=True),
        "forms/index": registry.push_index([other, ours], "forms/index"),
        "forms/list": registry.push_index([other, ours], "forms/list", docker=True),
    }


@pytest.mark.parametrize("form", ["oci", "docker", "index", "list"])
def test_E42_every_stored_form_resolves_to_the_digest_of_what_the_tag_names(
    client: RegistryClient, registry: Registry, stored: dict[str, str], form: str
):
    name, digest = f"forms/{form}", stored[f"forms/{form}"]
    found = client.resolve(registry.name(name), ARCHITECTURE)
    assert (found.digest, found.resolved) == (digest, registry.name(name, digest=digest))
    kind = registry.manifest(name, digest)["mediaType"]
    assert ("index" in kind or "list" in kind) == (form in {"index", "list"})
    assert (found.platform_digest == digest) == (form in {"oci", "docker"})
    again = client.resolve(found.resolved, ARCHITECTURE)
    assert (again.resolved, again.platform_digest) == (found.resolved, found.platform_digest)
    upper = found.resolved.replace(digest, f"sha256:{digest[7:].upper()}")
    assert client.resolve(upper, ARCHITECTURE).resolved == found.resolved


@pytest.mark.parametrize("form", ["oci", "docker", "index", "list"])
def test_the_layers_of_this_machines_image_have_the_sizes_of_what_is_sent(
    client: RegistryClient, registry: Registry, stored: dict[str, str], form: str
):
    image = registry.name(f"forms/{form}", digest=stored[f"forms/{form}"])
    sizes = client.layers(image, ARCHITECTURE)
    assert sizes
    assert all(registry.blob(digest).stat().st_size == size for digest, size in sizes.items())


def test_layers_that_nobody_tells_are_none(
    client: RegistryClient, registry: Registry, stored: dict[str, str]
):
    assert client.layers(registry.name("forms/oci", digest="sha256:" + "0" * 64), ARCHITECTURE) == {}
    assert client.layers("not an image", ARCHITECTURE) == {}
    assert client.layers(f"127.0.0.1:1/team/x@{stored['forms/oci']}", ARCHITECTURE) == {}


def test_an_index_runs_the_image_of_this_machine(client: RegistryClient, registry: Registry, stored):
    entries = {
        entry["platform"]["architecture"]: entry["digest"]
        for entry in registry.manifest("forms/index", "latest")["manifests"]
    }
    for architecture in (ARCHITECTURE, FOREIGN):
        found = client.resolve(registry.name("forms/index"), architecture)
        assert found.platform_digest == entries[architecture]
    assert machine_architecture() == ARCHITECTURE


def test_E43_a_moved_tag_means_something_else_at_once_and_the_old_digest_stays(
    client: RegistryClient, registry: Registry
):
    old = registry.push(registry.image("empty", marker="old"), "moving/tag", "v1")
    name = registry.name("moving/tag", "v1")
    first = client.resolve(name, ARCHITECTURE)
    assert first.digest == old
    new = registry.push(registry.image("empty", marker="new"), "moving/tag", "v1")
    assert client.resolve(name, ARCHITECTURE).digest == new != old
    registry.retag("moving/tag", old, "v1")
    assert client.resolve(name, ARCHITECTURE).digest == old
    assert client.resolve(registry.name("moving/tag", "v1", new), ARCHITECTURE).digest == new


def test_a_digest_is_remembered_and_a_tag_never_is(client: RegistryClient, registry: Registry, stored):
    by_digest = registry.name("forms/oci", digest=stored["forms/oci"])
    client.resolve(by_digest, ARCHITECTURE)
    before = len(registry.requests())
    client.resolve(by_digest, ARCHITECTURE)
    assert registry.requests()[before:] == []
    client.resolve(registry.name("forms/oci"), ARCHITECTURE)
    client.resolve(registry.name("forms/oci"), ARCHITECTURE)
    assert registry.requests()[before:] == ["HEAD /v2/forms/oci/manifests/latest"] * 2


@pytest.mark.parametrize(
    ("repository", "tag", "said"),
    [
        ("forms/oci", "nix", "the registry does not have the tag `nix`"),
        ("no/such", "latest", "the registry does not have the repository `no/such`"),
    ],
)
def test_what_the_registry_does_not_have_is_refused(
    client: RegistryClient, registry: Registry, stored, repository: str, tag: str, said: str
):
    with pytest.raises(ImageRefused, match=said):
        client.resolve(registry.name(repository, tag), ARCHITECTURE)


def test_a_deleted_image_is_refused_by_tag_and_by_digest(client: RegistryClient, registry: Registry):
    digest = registry.push(registry.image("empty", marker="deleted"), "to/delete", "1")
    registry.delete("to/delete", "1")
    with pytest.raises(ImageRefused, match="does not have the tag `1`"):
        client.resolve(registry.name("to/delete", "1"), ARCHITECTURE)
    with pytest.raises(ImageRefused, match=f"does not have the digest {digest}"):
        client.resolve(registry.name("to/delete", digest=digest), ARCHITECTURE)


def test_E45_an_image_for_another_architecture_is_refused_with_the_platforms_there_are(
    client: RegistryClient, registry: Registry
):
    other = registry.image(architecture=FOREIGN)
    registry.push(other, "foreign/single")
    registry.push_index([other], "foreign/index")
    with pytest.raises(
        ImageRefused, match=f"for linux/{FOREIGN}; here it has to be for linux/{ARCHITECTURE}"
    ):
        client.resolve(registry.name("foreign/single"), ARCHITECTURE)
    with pytest.raises(ImageRefused, match=f"no linux/{ARCHITECTURE}; its platforms: linux/{FOREIGN}"):
        client.resolve(registry.name("foreign/index"), ARCHITECTURE)


def test_E45_an_image_that_is_not_for_linux_is_refused(client: RegistryClient, registry: Registry, tmp_path):
    registry.push(registry.build("for-windows", tmp_path, system="windows"), "foreign/windows")
    with pytest.raises(ImageRefused, match=f"it is for windows/{ARCHITECTURE}"):
        client.resolve(registry.name("foreign/windows"), ARCHITECTURE)


def test_E44_an_image_that_needs_credentials_is_refused(client: RegistryClient, registry: Registry):
    with running_registry(private=True) as private:
        private.push(private.image("empty"), "team/secret")
        with pytest.raises(ImageRefused, match=r"needs credentials.*everybody may pull"):
            client.resolve(private.name("team/secret"), ARCHITECTURE)


@pytest.mark.parametrize(
    ("what", "said"), [("manifest", "it answers 500"), ("config", "it sent bytes with the digest")]
)
def test_damaged_bytes_are_not_believed(client: RegistryClient, registry: Registry, what: str, said: str):
    digest = registry.push(registry.image("empty", marker=f"damaged {what}"), "damaged/image", what)
    damaged = digest if what == "manifest" else registry.manifest("damaged/image", what)["config"]["digest"]
    place = registry.blob(damaged)
    place.write_bytes(place.read_bytes().replace(b'"', b"'", 1))
    with pytest.raises(RegistryUnavailable, match=said):
        client.resolve(registry.name("damaged/image", what), ARCHITECTURE)


def test_a_registry_that_went_away_is_unavailable(client: RegistryClient, registry: Registry):
    with running_registry() as gone:
        gone.push(gone.image("empty"), "team/tool")
        name = gone.name("team/tool")
        assert client.resolve(name, ARCHITECTURE).resolved
    with pytest.raises(RegistryUnavailable, match="no connection can be made"):
        client.resolve(name, ARCHITECTURE)


def test_a_mirror_with_a_path_of_its_own_answers_for_the_registry(registry: Registry):
    digest = registry.push(registry.image(), "hub/library/tool", "1")
    mirror = parse_mirror(f"docker.io={registry.host}/hub", "docker.io")
    client = RegistryClient(RegistryRules(mirrors=(mirror,), allowed=("docker.io",)))
    assert client.resolve("tool:1", ARCHITECTURE).resolved == f"docker.io/library/tool@{digest}"
    client.close()


def test_many_threads_share_one_client(client: RegistryClient, registry: Registry, stored):
    names = [registry.name(each) for each in stored] * 8
    start = threading.Barrier(8)

    def ask(name: str) -> str:
        return client.resolve(name, ARCHITECTURE).resolved

    with ThreadPoolExecutor(8, initializer=start.wait) as threads:
        found = list(threads.map(ask, names))
    assert found == [registry.name(each, digest=digest) for each, digest in stored.items()] * 8
