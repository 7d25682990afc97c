"""The sets shipped with edgeopt belong to the shipped network alone, which is recognized by its digest."""

from __future__ import annotations

from edgeopt.calibration.load import load_set
from edgeopt.calibration.types import DataSet
from edgeopt.errors import CalibrationError
from edgeopt.target import share_dir
from edgeopt.tomlfile import read_toml, refuse

SCHEMA = "edgeopt.embedded/1"


def embedded_sets(model_sha256: str) -> tuple[DataSet, DataSet] | None:
    """Calibration and evaluation set of the shipped network; None for every other model.

    Args:
        model_sha256: digest of the model file.
    """
    folder = share_dir("calibration")
    path = folder / "default.toml"
    table = read_toml(path, CalibrationError)
    table.only(("schema", "calibration", "evaluation", "networks"))
    table.text("schema", choices=(SCHEMA,))
    calibration, evaluation = table.text("calibration"), table.text("evaluation")
    networks = {name: entry.text("sha256") for name, entry in table.tables("networks").items()}
    refuse(path, table, "The installation is damaged; install edgeopt again.", CalibrationError)
    if model_sha256 not in networks.values():
        return None
    return load_set(folder / calibration), load_set(folder / evaluation)
