from loadtest.engine import infos
from loadtest.engine.settings import EngineSettings


def test_an_adapter_names_the_model_that_it_belongs_to() -> None:
    listed = infos.models(EngineSettings(models=("base",), loras=("adapter",)), 0)["data"]

    assert [(one["id"], one["parent"]) for one in listed] == [("base", None), ("adapter", "base")]


def test_the_model_is_named_where_sglang_names_it() -> None:
    assert infos.model_info(EngineSettings(models=("base",)))["model_path"] == "base"
