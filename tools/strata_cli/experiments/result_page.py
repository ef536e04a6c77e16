"""What an experiment leaves whose runs are those of comparisons.py: JSON with everything measured, a plot, a page, and sentences
beside the paper's. All of it can be made again from the JSON (`Pages.read`)."""

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

from .. import paths
from ..bench import results
from ..shell import StrataError, console
from .comparisons import Bar, Experiment, P, R, Result, Run, S
from .openaurora import Finding
from .report import STORAGE_NODES, sameness
from .report import sentence as ratio_sentence

CAPTION_WIDTH = 75  # characters for each part of a figure


def sentence(finding: Finding | Bar) -> str:
    if isinstance(finding, Finding):
        return ratio_sentence(finding)
    unit = f" {finding.unit}" if finding.unit else ""
    said = [f"{finding.what}: {finding.ours:.2f}{unit} here"]
    if finding.paper is not None:
        said.append(f"{finding.paper:.2f}{unit} in the paper")
    if finding.goal is not None and finding.goal != finding.paper:
        said.append(f"at {'least' if finding.more_is_better else 'most'} {finding.goal:.2f}{unit} wanted")
    return f"{', '.join(said)}; {'reached' if finding.agrees else 'not reached'}."


def emulation(result: Result[P, R], servers: str) -> str:
    """What has to be known of emulated nodes before any figure is looked at. `servers`: how many, of how many cores."""
    plan, wish = result.plan, result.plan.wish()
    void = [run.void for run in result.runs if run.void]
    voided = f"{len(void)} of {len(result.runs)} runs are VOID, such as: {void[0]}." if void else "No run is void."
    late, cores = _most(result, "late_share"), _most(result, "machine_cores")
    used = f"At most {cores:.2f} of {result.machine['cores']} real cores were used by all programs, and" if cores else "Of it"
    return (
        f"Emulated: {servers}, a memory node of {wish.cores_of('memory')}, {STORAGE_NODES} storage nodes of"
        f" {wish.cores_of('storage')}, clients on {wish.cores_of('client')}, time dilated by {plan.dilation:g}; all figures in"
        f" emulated time, link {plan.link}. {used} {late:.1%} of the time for which emulated cores were busy was late. {voided}"
        f" {sameness(result.same_figures)}."
    )


def _most(result: Result[P, R], cost: str) -> float:
    return max(((run.costs or {}).get(cost, 0.0) for run in result.runs), default=0.0)


def listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:,.2f}" for name, value in values.items())


@contextmanager
def drawn(title: str, caption: str, file: Path, parts: int, size: tuple[float, float], dpi: int) -> Iterator[list[Any]]:
    """A figure that is drawn within it, on the axes of so many parts. `size`: of a part."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(1, parts, figsize=(size[0] * parts, size[1]), squeeze=False)
    yield list(all_axes[0])
    figure.suptitle(title, fontsize="medium")
    below = "\n".join(textwrap.wrap(caption, CAPTION_WIDTH * parts))
    figure.text(0.01, 0.01, below, fontsize="x-small", va="bottom")
    figure.tight_layout(rect=(0, 0.04 + 0.03 * (below.count("\n") + 1), 1, 1))
    figure.savefig(file, dpi=dpi)
    pyplot.close(figure)


@dataclass(frozen=True)
class Pages(Generic[P, S]):
    """The results of one paper's experiments, and what is said of them."""

    paper: str  # its title
    result: Callable[..., S]
    run: Callable[..., Run]
    sizes: tuple[str, ...]  # of the result, in bytes
    unit: Callable[[S], str]  # of the runs' rates
    scale: Callable[[S], str]
    remarks: Callable[[S], list[str]]  # what has to be known before any figure is looked at
    table: Callable[[S], Iterable[str]]  # the lines of all runs
    plot: Callable[[Experiment[P, S], S, Path], None]

    def publish(
        self, experiment: Experiment[P, S], result: S, json_file: Path, plot_file: Path, page: Path | None = None
    ) -> None:
        self.save(experiment, result, json_file)
        plot_file.parent.mkdir(parents=True, exist_ok=True)
        self.plot(experiment, result, plot_file)
        if page is not None:
            page.write_text(self.markdown(experiment, result, plot_file))
        console.print(f"{experiment.title} ({experiment.paper})")
        for said in (*self.remarks(result), self.scale(result), *map(sentence, experiment.findings(result))):
            console.print(said, markup=False)
        console.print(f"written: {paths.relative(json_file.resolve())}, {paths.relative(plot_file.resolve())}")

    def save(self, experiment: Experiment[P, S], result: S, json_file: Path) -> None:
        results.put(self._as_json(experiment, result), json_file)

    def _as_json(self, experiment: Experiment[P, S], result: S) -> dict[str, object]:
        findings = experiment.findings(result)
        return {
            "experiment": result.plan.name,
            "title": experiment.title,
            "paper": f"{self.paper}: {experiment.paper}",
            "commits": result.commits,
            "machine": result.machine,
            "settings": result.plan.settings(),
            "setups": result.setup_facts(),
            "scale": self.scale(result),
            "remarks": self.remarks(result),
            "notes": result.notes,
            **{size: getattr(result, size) for size in self.sizes},
            "same_figures_deviation_max": result.same_figures,
            "unit": self.unit(result),
            "findings": [{**asdict(finding), "agrees": finding.agrees, "sentence": sentence(finding)} for finding in findings],
            "runs": [asdict(run) for run in result.runs],
        }

    def read(self, plan: P, json_file: Path) -> S:
        """What save() wrote."""
        try:
            said: dict[str, Any] = json.loads(json_file.read_text())
            if said["experiment"] != plan.name:
                raise StrataError(f"{json_file} holds {said['experiment']}, not {plan.name}")
            plan = plan.changed(said["settings"])
            if [setup["label"] for setup in said["setups"]] != [setup.label for setup in plan.setups]:
                raise StrataError(f"{json_file}: its setups are not those of now")
            return self.result(
                plan=plan,
                runs=[self.run(**run) for run in said["runs"]],
                same_figures=said["same_figures_deviation_max"],
                **{name: said[name] for name in ("commits", "machine", "notes", *self.sizes)},
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StrataError(f"{json_file} cannot be read as an experiment's result: {error!r}") from error

    def markdown(self, experiment: Experiment[P, S], result: S, plot_file: Path) -> str:
        """All of it as a page, beside the plot."""
        lines = [f"# {experiment.title}", ""]
        for said in self.remarks(result):
            lines += [said, ""]
        source = f'"{self.paper}", {experiment.paper}'
        lines += [f"{source}. {self.scale(result)} Commits: {', '.join(result.commits)}.", ""]
        lines += [f"![{experiment.title}]({plot_file.name})", ""]
        lines += [f"- {sentence(finding)}" for finding in experiment.findings(result)]
        return "\n".join([*lines, "", *self.table(result)]) + "\n"
