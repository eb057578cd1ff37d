"""What `kvrelease prompts select` says of its choice."""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import Artifact
from kvrelease.selection.cutting import Unit
from kvrelease.selection.evaluate import Traffic
from kvrelease.selection.split import SplitBy
from kvrelease.workload.budget import Budget


class SelectedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of the set; its text stands in the set's file only.

    Attributes:
        id: in the set's file: `line-` and the line of the log; `.2`, `.3`, … for further requests of one line.
        line: of the log, from 1; None where the log has none.
        weight: traffic that it stands for.
        length: of the prompt, in the report's unit.
        new_blocks: that it adds to those before it.
        saves: traffic times units that it adds.
    """

    id: str
    line: int | None
    weight: float
    length: int
    new_blocks: int
    saves: float


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the first prompts of the set cost and hit.

    Attributes:
        prompts: how many.
        length: of all of them, in the report's unit.
        blocks: that they occupy.
        hit_rate: of the traffic that was chosen from, 0 … 1.
        held_out_hit_rate: of the traffic that was held out; None where none was.
    """

    prompts: int
    length: int
    blocks: int
    hit_rate: float | None
    held_out_hit_rate: float | None


class Selection(Artifact, frozen=True, kw_only=True, tag="kvrelease/selection"):
    """A choice of prompts from a traffic log.

    Attributes:
        source: the log, as the user wrote it.
        unit: what lengths count: characters of the prompts' texts, or tokens.
        block: size of a block, in that unit.
        is_trace: the log has hashes of blocks and no text: figures only, no set.
        requests: that were read.
        damaged: records that were passed over, on request.
        split: what decided which requests were held out.
        seed: of a split by hash.
        budget: the limits given.
        prompts: chosen, best first.
        chosen_from: the traffic that was chosen from.
        held_out: the traffic that was held out; None where none was.
        curve: budget against hit rate.
        proved_share: at least so much of the best possible choice's value on the traffic it was chosen from, 0 … 1.
        undercount: blocks were counted in bounded memory: none too often, and none by more than this weight too low.
        key_spaces: different pairs of model and salt among the chosen prompts.
        uncacheable_weight: traffic whose prompts are shorter than a block, of the part that was chosen from.
        warnings: what to know.
        passed_over: records of the log that are no request to warm for, by reason, most first.
    """

    source: str
    unit: Unit
    block: int
    is_trace: bool
    requests: int
    damaged: int
    split: SplitBy
    seed: int
    budget: Budget
    prompts: tuple[SelectedPrompt, ...]
    chosen_from: Traffic
    held_out: Traffic | None
    curve: tuple[CurvePoint, ...]
    proved_share: float
    undercount: float
    key_spaces: int
    uncacheable_weight: float
    warnings: tuple[str, ...]
    # Artifacts of before have none.
    passed_over: tuple[tuple[str, int], ...] = ()
