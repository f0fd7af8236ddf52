"""A study is always judged by the present method: one that an older method judged is judged again
by its command, from its stored runs.
"""

import pytest
import stored
from study_fakes import go, make_study, patched, trainings, verdict

from andrea.verdict.judgement import METHOD


@pytest.fixture(autouse=True)
def _synthetic(monkeypatch):
    patched(monkeypatch)


def test_a_study_of_an_older_method_is_judged_again_without_training(tmp_path):
    folder, store = make_study(tmp_path)
    go(folder, store)
    present, trained = stored.study_json(folder, "verdict.json"), trainings(tmp_path)
    keys = ("verdicts", "baseline", "versions", "complete", "exploratory")
    older = {key: present[key] for key in keys}
    older["verdicts"] = [{**v, "verdict": "inconclusive"} for v in older["verdicts"]]
    folder.write("verdict.json", {**older, "method": 1})

    assert go(folder, store).complete
    assert stored.study_json(folder, "verdict.json") == present and present["method"] == METHOD
    assert verdict(folder)["verdict"] != "inconclusive"
    assert trainings(tmp_path) == trained
    assert [path.name for path in folder.path.glob("verdict*")] == ["verdict.json"]
