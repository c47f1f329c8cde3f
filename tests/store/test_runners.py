"""Who may read which Runner Revision, and what a selector names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from support.rows import add_project
from trainshed.model.access import KeyKind, Permission, Principal, Visibility
from trainshed.model.errors import Refusal
from trainshed.model.selectors import parse_selector
from trainshed.store import runners

A, B, C = "a" * 40, "b" * 40, "abc" + "0" * 37
READ = frozenset({Permission.RUNNER_READ})


def who(project_id: str, *, owner: bool = False, permissions=READ) -> Principal:
    return Principal(f"key_{project_id}", project_id, KeyKind.HUMAN, permissions, owner)


@pytest.fixture
def projects(database):
    for name in ("p", "q", "r"):
        add_project(database, name)
    return database


def publish(
    database, name="team/net", revision=A, project="p", visibility=Visibility.PROJECT, ref=None, at=1.0
):
    def work(connection):
        runners.claim(connection, who(project), name, visibility, at=at)
        made = runners.insert_revision(
            connection,
            {
                "runner": name,
                "revision": revision,
                "snapshot_sha256": "c" * 64,
                "manifest": "{}",
                "definition": "{}",
                "source_ref": ref,
                "published_at": at,
                "published_by": "human:me",
            },
        )
        if ref:
            runners.move_ref(connection, name, ref, revision, at=at)
        return made

    return database.write(work)


def resolve(database, selector, principal):
    with database.read() as connection:
        return runners.resolve(connection, principal, parse_selector(selector))


def refused(database, selector, principal) -> str:
    with pytest.raises(Refusal) as caught:
        resolve(database, selector, principal)
    return caught.value.code


def listed(database, principal):
    with database.read() as connection:
        rows = runners.list_revisions(connection, principal, before=None, limit=100)
    return {revision.selector for revision, _ in rows}


@pytest.mark.parametrize(
    ("visibility", "granted", "readers"),
    [
        (Visibility.PUBLIC, [], {"p", "q", "r"}),
        (Visibility.PROJECT, [], {"p"}),
        (Visibility.PROJECT, ["q"], {"p"}),
        (Visibility.PROJECTS, ["q"], {"p", "q"}),
        (Visibility.PROJECTS, [], {"p"}),
    ],
)
def test_E2_E7_a_revision_is_named_and_listed_exactly_for_those_who_may_read_it(
    projects, visibility, granted, readers
):
    publish(projects)
    projects.write(lambda c: runners.set_visibility(c, "team/net", visibility, granted))
    for project in ("p", "q", "r"):
        if project in readers:
            revision, ref = resolve(projects, f"team/net@{A}", who(project))
            assert (revision.revision, ref) == (A, None)
            assert listed(projects, who(project)) == {f"team/net@{A}"}
        else:
            assert refused(projects, f"team/net@{A}", who(project)) == "RUNNER_NOT_FOUND"
            assert listed(projects, who(project)) == set()
        with projects.read() as connection:
            assert runners.still_readable(connection, project, "team/net", A) == (project in readers)


def test_what_is_unreadable_is_refused_in_the_words_of_what_is_not_there(projects):
    """A refusal teaches nothing about other projects' Runners."""
    publish(projects)
    with pytest.raises(Refusal) as hidden:
        resolve(projects, f"team/net@{A}", who("q"))
    with pytest.raises(Refusal) as missing:
        resolve(projects, f"team/not@{A}", who("q"))
    assert str(hidden.value).replace("team/net", "X") == str(missing.value).replace("team/not", "X")


def test_E25_a_ref_names_the_revision_it_points_at_now(projects):
    publish(projects, revision=A, ref="main")
    assert resolve(projects, "team/net@main", who("p"))[0].revision == A
    publish(projects, revision=B, ref="main", at=2.0)
    revision, ref = resolve(projects, "team/net@main", who("p"))
    assert (revision.revision, ref) == (B, "main")
    assert resolve(projects, f"team/net@{A}", who("p"))[0].revision == A
    with projects.read() as connection:
        assert runners.list_refs(connection, "team/net") == {"main": B}


def test_a_short_commit_names_its_one_match_and_is_ambiguous_with_two(projects):
    publish(projects, revision="abc1234" + "0" * 33)
    assert resolve(projects, "team/net@abc1234", who("p"))[0].revision == "abc1234" + "0" * 33
    publish(projects, revision="abc1234" + "1" * 33, at=2.0)
    assert refused(projects, "team/net@abc1234", who("p")) == "RUNNER_VERSION_AMBIGUOUS"
    assert resolve(projects, "team/net@abc12341", who("p"))[0].revision == "abc1234" + "1" * 33
    assert refused(projects, "team/net@abc123", who("p")) == "RUNNER_NOT_FOUND"


def test_a_ref_that_looks_like_a_short_commit_wins_over_commits(projects):
    publish(projects, revision="abcdef0" + "0" * 33)
    publish(projects, revision=B, ref="abcdef0", at=2.0)
    assert resolve(projects, "team/net@abcdef0", who("p"))[0].revision == B


def test_a_full_commit_is_never_taken_for_a_ref(projects):
    publish(projects, revision=A)
    projects.write(lambda c: runners.move_ref(c, "team/net", C, A, at=3.0))
    assert refused(projects, f"team/net@{C}", who("p")) == "RUNNER_NOT_FOUND"


def test_E30_a_withdrawn_revision_is_not_there_until_the_same_bytes_are_published_again(projects):
    revision = publish(projects, ref="main")
    assert projects.write(lambda c: runners.withdraw(c, "team/net", A, at=5.0))
    assert not projects.write(lambda c: runners.withdraw(c, "team/net", A, at=6.0))
    assert refused(projects, "team/net@main", who("p")) == "RUNNER_NOT_FOUND"
    assert listed(projects, who("p")) == set()
    with projects.read() as connection:
        assert not runners.still_readable(connection, "p", "team/net", A)
        assert runners.find_revision(connection, "team/net", A).withdrawn_at == 5.0
    projects.write(lambda c: runners.restore_revision(c, revision))
    assert resolve(projects, "team/net@main", who("p"))[0].revision == A


def test_a_key_that_may_neither_read_nor_run_sees_no_runner(projects):
    publish(projects, visibility=Visibility.PUBLIC)
    stranger = who("p", permissions=frozenset({Permission.TRAINING_STOP}))
    assert refused(projects, f"team/net@{A}", stranger) == "RUNNER_NOT_FOUND"


def test_a_namespace_belongs_to_the_project_that_first_published_in_it(projects):
    publish(projects, "team/net", project="p")
    with pytest.raises(Refusal) as taken:
        publish(projects, "team/other", project="q")
    assert taken.value.code == "NAMESPACE_TAKEN"
    publish(projects, "elsewhere/net", project="q")


def test_the_owner_key_publishes_in_any_namespace_and_leaves_it_where_it_was(projects):
    publish(projects, "team/net", project="p")
    made = projects.write(
        lambda c: runners.claim(c, who("q", owner=True), "team/other", Visibility.PROJECT, at=2.0)
    )
    assert made.project_id == "p"


def test_the_owner_key_reads_every_runner_and_runs_what_its_project_may_read(projects):
    """What is accepted is checked again for the project before it starts; it must not fail only then."""
    publish(projects, "team/net", project="p")
    owner = who("q", owner=True)
    selector = parse_selector(f"team/net@{A}")
    assert resolve(projects, str(selector), owner)[0].revision == A
    with projects.read() as connection, pytest.raises(Refusal) as refused_to_run:
        runners.resolve(connection, owner, selector, to_run=True)
    assert refused_to_run.value.code == "RUNNER_NOT_FOUND"
    projects.write(lambda c: runners.set_visibility(c, "team/net", Visibility.PROJECTS, ["q"]))
    with projects.read() as connection:
        assert runners.resolve(connection, owner, selector, to_run=True)[0].revision == A
        assert runners.still_readable(connection, "q", "team/net", A)


def test_of_two_projects_that_claim_a_namespace_at_once_one_gets_it(projects):
    def claim(project):
        try:
            return projects.write(
                lambda c: runners.claim(c, who(project), f"new/{project}", Visibility.PUBLIC, at=1.0)
            ).project_id
        except Refusal as refusal:
            return refusal.code

    with ThreadPoolExecutor(3) as pool:
        answers = sorted(pool.map(claim, ["p", "q", "r"]))
    assert answers.count("NAMESPACE_TAKEN") == 2
    assert len(set(answers) - {"NAMESPACE_TAKEN"}) == 1


def test_revisions_are_listed_newest_first_page_by_page(projects):
    for number in range(5):
        publish(projects, revision=f"{number}" * 40, at=float(number))
    publish(projects, "team/other", revision=A, at=9.0)
    walked, before = [], None
    with projects.read() as connection:
        while page := runners.list_revisions(connection, who("p"), before=before, limit=2, name="team/net"):
            walked += [revision.revision[0] for revision, _ in page]
            before = page[-1][0].id
    assert walked == ["4", "3", "2", "1", "0"]


def test_E8_a_published_revision_cannot_be_published_again_with_other_content(projects):
    publish(projects)
    with pytest.raises(Exception, match=r"(?i)unique"):
        publish(projects)


def test_grants_count_only_while_the_runner_is_for_named_projects(projects):
    publish(projects)
    projects.write(lambda c: runners.set_visibility(c, "team/net", Visibility.PROJECTS, ["q", "r", "q"]))
    with projects.read() as connection:
        assert runners.list_grants(connection, "team/net") == ["q", "r"]
    projects.write(lambda c: runners.set_visibility(c, "team/net", Visibility.PROJECT, []))
    with projects.read() as connection:
        assert runners.list_grants(connection, "team/net") == []
