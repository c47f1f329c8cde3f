"""Named contents: versions, who may read them, withdrawal, and the plugins that are allowed."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, update

from support.rows import add_project
from trainshed.model.access import KeyKind, Permission, Principal, Visibility
from trainshed.model.content import ContentKind, ContentUri
from trainshed.model.errors import Refusal
from trainshed.store import content_lists, contents, plugins, queue
from trainshed.store.tables import blobs, manifest_blobs

DATASETS, PLUGINS = ContentKind.DATASETS, ContentKind.PLUGINS
ONE, TWO = "1" * 64, "2" * 64


def who(project_id: str, *, owner: bool = False) -> Principal:
    return Principal(f"key_{project_id}", project_id, KeyKind.HUMAN, frozenset(Permission), owner)


@pytest.fixture
def projects(database):
    for name in ("p", "q", "r"):
        add_project(database, name)
    return database


def blob(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def release(version="1.0", manifest=ONE, name="team/words", kind=DATASETS, files=("a", "b"), about="{}"):
    names = [blob(text) for text in files]
    return contents.Release(kind, name, version, manifest, 100, about, len(names), 2, names)


def stored(database, *names: str) -> None:
    database.write(lambda c: queue.put_blobs(c, dict.fromkeys(names, 1), at=1.0))


def publish(database, made=None, *, project="p", visibility=None, at=1.0, store=True, **how):
    made = made or release(**how)
    if store:
        stored(database, made.manifest_sha256, *made.blobs)
    return database.write(lambda c: contents.publish(c, who(project), made, visibility, at=at))


def refused(work, *arguments, **how) -> Refusal:
    with pytest.raises(Refusal) as caught:
        work(*arguments, **how)
    return caught.value


def resolve(database, project: str, ref: str, name="words", kind=DATASETS):
    with database.read() as connection:
        return contents.resolve(connection, project, ContentUri(kind, "team", name, ref))


def listed(database, principal, kind=DATASETS, **how):
    with database.read() as connection:
        rows = content_lists.list_contents(connection, principal, kind, after=None, limit=100, **how)
    return [(row.content.name, row.versions, row.newest.version) for row in rows]


def test_E92_a_version_is_named_by_its_label_and_by_its_manifest(projects):
    version, created = publish(projects)
    assert created
    assert (version.version, version.files, version.bytes) == ("1.0", 2, 2)
    assert resolve(projects, "p", "1.0") == resolve(projects, "p", ONE) == version
    assert resolve(projects, "p", "2.0") is None
    assert resolve(projects, "p", "1.0", kind=ContentKind.MODELS) is None


def test_the_same_version_again_is_the_same_version(projects):
    first, _ = publish(projects, at=1.0)
    assert publish(projects, at=2.0) == (first, False)


def test_a_version_never_gets_another_manifest(projects):
    publish(projects)
    refusal = refused(publish, projects, manifest=TWO)
    assert refusal.code == "CONTENT_VERSION_EXISTS"
    assert ONE in refusal.message
    assert TWO in refusal.message
    assert publish(projects, version="1.1", manifest=TWO)[1]


def test_of_two_publishers_at_once_one_wins_and_the_other_is_told(projects):
    stored(projects, ONE, TWO, blob("a"), blob("b"))

    for number in range(5):
        with ThreadPoolExecutor(2) as pool:
            answers = sorted(pool.map(attempt, [projects] * 2, [number] * 2, (ONE, TWO)))
        assert answers == ["CONTENT_VERSION_EXISTS", "published"]


def attempt(database, number: int, manifest: str) -> str:
    try:
        publish(database, version=f"v{number}", manifest=manifest, store=False)
    except Refusal as refusal:
        return refusal.code
    return "published"


def test_a_missing_blob_is_named_and_nothing_is_left(projects):
    made = release()
    stored(projects, made.manifest_sha256, blob("a"))
    refusal = refused(publish, projects, made, store=False)
    assert refusal.code == "BLOB_NOT_FOUND"
    assert refusal.extra["missing"] == [blob("b")]
    with projects.read() as connection:
        assert contents.find_content(connection, DATASETS, "team/words") is None
    stored(projects, blob("b"))
    assert publish(projects, made, store=False)[1]


def test_a_blob_that_is_being_deleted_is_not_counted_on(projects):
    made = release()
    stored(projects, made.manifest_sha256, *made.blobs)
    projects.write(
        lambda c: c.execute(update(blobs).where(blobs.c.sha256 == blob("a")).values(deleting_at=5.0))
    )
    refusal = refused(publish, projects, made, store=False)
    assert refusal.code == "BLOB_BEING_DELETED"
    assert refusal.retry_after


def test_publishing_touches_every_blob_of_the_manifest(projects):
    publish(projects, at=77.0)
    with projects.read() as connection:
        rows = connection.execute(blobs.select()).all()
    assert {row.sha256 for row in rows} == {ONE, blob("a"), blob("b")}
    assert {row.touched_at for row in rows} == {77.0}


def test_a_withdrawn_version_is_gone_and_comes_back_with_the_same_manifest_only(projects):
    publish(projects)
    assert projects.write(lambda c: contents.withdraw(c, DATASETS, "team/words", "1.0", at=2.0)) == ["1.0"]
    assert projects.write(lambda c: contents.withdraw(c, DATASETS, "team/words", "1.0", at=3.0)) == []
    assert resolve(projects, "p", "1.0") is None
    assert listed(projects, who("p")) == []
    with projects.read() as connection:
        assert contents.find_version(connection, DATASETS, "team/words", "1.0").withdrawn_at == 2.0
        assert not contents.still_readable(connection, "p", DATASETS, "team/words", ONE)
        assert contents.readable(connection, "p", DATASETS, "team/words")
    assert refused(publish, projects, manifest=TWO).code == "CONTENT_VERSION_EXISTS"
    assert publish(projects)[1]
    assert resolve(projects, "p", ONE).version == "1.0"


def test_withdrawing_a_digest_withdraws_every_version_of_it(projects):
    publish(projects, version="1.0")
    publish(projects, version="latest-stable")
    publish(projects, version="2.0", manifest=TWO)
    gone = projects.write(lambda c: contents.withdraw(c, DATASETS, "team/words", ONE, at=2.0))
    assert gone == ["1.0", "latest-stable"]
    assert resolve(projects, "p", ONE) is None
    assert resolve(projects, "p", "2.0")


def test_a_manifest_stays_readable_while_one_version_of_it_is(projects):
    publish(projects, version="1.0")
    publish(projects, version="1.0-again")
    projects.write(lambda c: contents.withdraw(c, DATASETS, "team/words", "1.0", at=2.0))
    assert resolve(projects, "p", ONE).version == "1.0-again"
    with projects.read() as connection:
        assert contents.still_readable(connection, "p", DATASETS, "team/words", ONE)


@pytest.mark.parametrize(
    ("visibility", "granted", "readers"),
    [
        (Visibility.PUBLIC, [], {"p", "q", "r"}),
        (Visibility.PROJECT, ["q"], {"p"}),
        (Visibility.PROJECTS, ["q"], {"p", "q"}),
        (Visibility.PROJECTS, [], {"p"}),
    ],
)
def test_E104_a_content_is_read_by_whom_its_visibility_names(projects, visibility, granted, readers):
    publish(projects)
    projects.write(lambda c: contents.set_visibility(c, DATASETS, "team/words", visibility, granted))
    assert {name for name in ("p", "q", "r") if resolve(projects, name, "1.0")} == readers
    assert {name for name in ("p", "q", "r") if listed(projects, who(name))} == readers
    with projects.read() as connection:
        for question in (
            lambda name: contents.readable(connection, name, DATASETS, "team/words"),
            lambda name: contents.still_readable(connection, name, DATASETS, "team/words", ONE),
        ):
            assert {name for name in ("p", "q", "r") if question(name)} == readers
        assert contents.list_grants(connection, DATASETS, "team/words") == granted
    assert listed(projects, who("r", owner=True))


def test_a_grant_counts_for_its_kind_only(projects):
    publish(projects)
    publish(projects, kind=ContentKind.MODELS, manifest=TWO)
    projects.write(lambda c: contents.set_visibility(c, DATASETS, "team/words", Visibility.PROJECTS, ["q"]))
    projects.write(
        lambda c: contents.set_visibility(c, ContentKind.MODELS, "team/words", Visibility.PROJECTS, [])
    )
    assert resolve(projects, "q", "1.0")
    assert not resolve(projects, "q", "1.0", kind=ContentKind.MODELS)


def test_publishing_with_a_visibility_replaces_the_one_before(projects):
    publish(projects, visibility=Visibility.PUBLIC)
    assert resolve(projects, "q", "1.0")
    publish(projects, version="1.1", manifest=TWO)
    assert resolve(projects, "q", "1.1"), "one that is not given changes nothing"
    publish(projects, visibility=Visibility.PROJECT)
    assert not resolve(projects, "q", "1.1")


def test_a_namespace_is_shared_with_runners_and_belongs_to_one_project(projects):
    publish(projects)
    assert refused(publish, projects, project="q", name="team/other").code == "NAMESPACE_TAKEN"
    made = release(name="team/other")
    stored(projects, made.manifest_sha256, *made.blobs)
    projects.write(lambda c: contents.publish(c, who("q", owner=True), made, None, at=1.0))
    with projects.read() as connection:
        assert contents.find_content(connection, DATASETS, "team/other").project_id == "p"


def test_contents_are_listed_newest_first_in_pages_with_their_newest_version(projects):
    for number in range(5):
        publish(projects, name=f"team/d{number}", at=float(number // 2))
    publish(projects, name="team/d0", version="2.0", manifest=TWO, at=9.0)
    whole = listed(projects, who("p"))
    assert whole == [
        ("team/d4", 1, "1.0"),
        ("team/d3", 1, "1.0"),
        ("team/d2", 1, "1.0"),
        ("team/d1", 1, "1.0"),
        ("team/d0", 2, "2.0"),
    ]
    walked, after = [], None
    while True:
        with projects.read() as connection:
            page = content_lists.list_contents(connection, who("p"), DATASETS, after=after, limit=2)
        if not page:
            break
        walked += [(row.content.name, row.versions, row.newest.version) for row in page]
        after = page[-1].content.created_at, page[-1].content.name
    assert walked == whole


def test_contents_are_found_by_text_type_and_name(projects):
    publish(projects, name="team/Words_1", about='{"type":"environment"}')
    publish(
        projects, name="team/words2", manifest=TWO, about='{"description":"\\"type\\":\\"environment\\""}'
    )
    assert [name for name, *_ in listed(projects, who("p"), text="WORDS_")] == ["team/Words_1"]
    assert [name for name, *_ in listed(projects, who("p"), text="%")] == []
    assert [name for name, *_ in listed(projects, who("p"), of_type="environment")] == ["team/Words_1"]
    assert [name for name, *_ in listed(projects, who("p"), name="team/words2")] == ["team/words2"]


def test_versions_are_listed_newest_first(projects):
    for number, manifest in enumerate((ONE, TWO, "3" * 64)):
        publish(projects, version=f"1.{number}", manifest=manifest)
    projects.write(lambda c: contents.withdraw(c, DATASETS, "team/words", "1.1", at=2.0))
    with projects.read() as connection:
        page = contents.list_versions(connection, DATASETS, "team/words", before=None, limit=10)
        assert [version.version for version in page] == ["1.2", "1.0"]
        assert contents.newest_version(connection, DATASETS, "team/words").version == "1.2"
        rest = contents.list_versions(connection, DATASETS, "team/words", before=page[0].id, limit=10)
    assert [version.version for version in rest] == ["1.0"]


def test_blobs_of_a_manifest_are_known_with_their_sizes(projects):
    publish(projects)
    with projects.read() as connection:
        assert contents.blob_size(connection, ONE, blob("a")) == 1
        assert contents.blob_size(connection, ONE, blob("other")) is None
        assert contents.same_manifest(connection, DATASETS, ONE)[0].version == "1.0"
        assert contents.same_manifest(connection, ContentKind.MODELS, ONE) is None


def test_E94_a_plugin_is_allowed_until_it_is_revoked(projects):
    publish(projects, kind=PLUGINS, name="team/filter")
    given = projects.write(lambda c: plugins.approve_plugin(c, "team/filter", ONE, at=1.0, by="human:o"))
    assert given.revoked_at is None
    again = projects.write(lambda c: plugins.approve_plugin(c, "team/filter", ONE, at=2.0, by="human:x"))
    assert again == given
    revoked = projects.write(lambda c: plugins.revoke_plugin(c, "team/filter", ONE, at=3.0, by="human:o"))
    assert (revoked.revoked_at, revoked.revoked_by) == (3.0, "human:o")
    assert (
        projects.write(lambda c: plugins.revoke_plugin(c, "team/filter", ONE, at=4.0, by="human:o"))
        == revoked
    )
    assert (
        projects.write(lambda c: plugins.revoke_plugin(c, "team/filter", TWO, at=4.0, by="human:o")) is None
    )
    projects.write(lambda c: plugins.approve_plugin(c, "team/filter", ONE, at=5.0, by="human:o"))
    projects.write(lambda c: plugins.approve_plugin(c, "team/other", TWO, at=6.0, by="human:o"))
    with projects.read() as connection:
        assert contents.approval(connection, "team/filter", ONE).revoked_at is None
        assert contents.approval(connection, "team/other", ONE) is None
        first = plugins.list_approvals(connection, reader=None, after=None, limit=1)
        rest = plugins.list_approvals(
            connection,
            reader=None,
            after=(first[0].approved_at, first[0].name, first[0].manifest_sha256),
            limit=5,
        )
    assert [row.name for row in (*first, *rest)] == ["team/other", "team/filter"]


def test_a_release_that_was_staged_in_parts_is_published_whole(projects):
    made = release(files=tuple(f"file {number}" for number in range(300)))
    stored(projects, made.manifest_sha256, *made.blobs)
    parts = [made.blobs[start : start + 70] for start in range(0, 300, 70)]
    for part in (*parts, parts[0]):
        projects.write(lambda c, part=part: contents.stage(c, made, part, at=500.0))
    with projects.read() as connection:
        assert contents.same_manifest(connection, DATASETS, ONE) is None, "nothing is readable yet"
        assert contents.find_content(connection, DATASETS, "team/words") is None
    assert publish(projects, made, store=False, at=501.0)[1]
    with projects.read() as connection:
        assert contents.blob_size(connection, ONE, made.blobs[299]) == 1
    projects.write(lambda c: contents.stage(c, made, parts[0], at=502.0))


def test_what_is_lost_between_staging_and_publishing_is_made_good(projects):
    made = release(files=("a", "b", "c"))
    stored(projects, made.manifest_sha256, *made.blobs)
    projects.write(lambda c: contents.stage(c, made, made.blobs, at=2.0))
    projects.write(lambda c: c.execute(delete(manifest_blobs).where(manifest_blobs.c.sha256 == blob("b"))))
    assert publish(projects, made, store=False)[1]
    with projects.read() as connection:
        assert all(contents.blob_size(connection, ONE, name) == 1 for name in (ONE, *made.blobs))
