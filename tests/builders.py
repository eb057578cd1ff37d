"""Artifacts of every kind, with fixed values, for the tests of reports and of the command line.

Each builder takes changes by keyword, so that a test names what matters to it.
"""

from __future__ import annotations

import datetime
from typing import TypeVar

import msgspec

from kvrelease.artifacts import Artifact, Fault, ReleaseRef, Verdict
from kvrelease.binding.namespace import NamespaceReport, RuntimeReport
from kvrelease.binding.observe import Leg, Witness
from kvrelease.binding.reloading.plan import Ending, Outcome, Step, Taken
from kvrelease.binding.reloading.result import ReloadReport, ReplicaReload
from kvrelease.binding.runtime import declared_runtime
from kvrelease.binding.settings import binding_settings
from kvrelease.binding.settings.binding import Wanted
from kvrelease.binding.target import BindingTarget
from kvrelease.demo.figures import DemoReport, Example, Gate, Impact, Strategy, StrategyFigures
from kvrelease.engines.base import GeneratedToken, Observation, TopLogprob
from kvrelease.prewarm.plan import Plan
from kvrelease.prewarm.result import ControlResult, Percentiles, PrewarmReport, ReplicaResult
from kvrelease.release.adapter import AdapterDigest
from kvrelease.release.check import ReleaseCheck
from kvrelease.release.comparison import AdapterChanges, Renamed, TensorChanges
from kvrelease.release.diff_record import ConfigChange, Diff, KvImpact, KvStatus
from kvrelease.release.diff_summary import summarise
from kvrelease.release.digests import LayerDigest
from kvrelease.release.drift_figures import Drift, DriftStatus, Sums, equal, measured, roll_up
from kvrelease.release.file_changes import FileChange, FileEdit
from kvrelease.release.fingerprint import Digests, Fingerprint
from kvrelease.release.impact import ADAPTER_RULE, Rule
from kvrelease.release.mode import Mode
from kvrelease.release.relayout import Relaid, RelaidStatus, relaid_reasons
from kvrelease.release.runtime_change import RuntimeChange, RuntimeField, RuntimeStatus
from kvrelease.release.sampling import detection_bound
from kvrelease.release.text_changes import TemplateChange, ValueChange
from kvrelease.release.tokenizer_change import ProbeChange, TokenizerChange, TokenSample, VocabularyChange
from kvrelease.selection.cutting import Unit
from kvrelease.selection.evaluate import Traffic
from kvrelease.selection.result import CurvePoint, SelectedPrompt, Selection
from kvrelease.selection.split import SplitBy
from kvrelease.verify.checks import BindingResult, Check, CheckId, CheckVerdict
from kvrelease.verify.closeness import Closeness
from kvrelease.verify.consistency import CloserTo, ProbeJudgement, ProbeVerdict
from kvrelease.verify.diagnosis import Diagnosis, StalePrefix
from kvrelease.verify.evidence import Cost
from kvrelease.verify.exposure import ExposureResult, SpaceVerdict
from kvrelease.verify.judge import Claim, PowerResult, StaleShare, VerifyReport
from kvrelease.verify.next_step import Action, NextStep
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.recheck import Cause, CauseFound
from kvrelease.verify.record import EngineRef, Record, RecordedObservation
from kvrelease.verify.tier import Tier
from kvrelease.workload.budget import Budget
from kvrelease.workload.check import PromptsReport, SharedPrefix
from kvrelease.workload.log_report import LoggedFinding, LoggedKeySpace, LoggedTokens, LogReport, Opening
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.prompt_findings import KeySpaceShare, SensitiveFinding, Uncacheable, UncacheableReason
from kvrelease.workload.prompt_warnings import PromptsWarning, WarningCode
from kvrelease.workload.sensitive import SensitiveKind
from kvrelease.workload.tokens import TokenFigures

A = TypeVar("A", bound=msgspec.Struct)

CREATED = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
TOOL = "0.0.0"
OLD_KV = "kv1-" + "a" * 32
NEW_KV = "kv1-" + "b" * 32
NAMESPACE = f"{NEW_KV}-undeclared-e0"
REPLICA = "http://10.0.12.34:8000"
DIGEST = "kvfp1-full/llama.1:" + "0123456789abcdef" * 4


def _changed(artifact: A, changes: dict[str, object]) -> A:
    return msgspec.structs.replace(artifact, **changes)


def release(name: str = "support-v1.3", *, kv_name: str | None = NEW_KV, source: str | None = None) -> ReleaseRef:
    return ReleaseRef(name=name, version=None, source=source or f"./models/{name}", kv_name=kv_name)


def observation(text: str = "No, you cannot.", *, nats: float = -0.25, **changes: object) -> Observation:
    token = GeneratedToken(token="No", token_id=7, logprob=nats, top=(TopLogprob(token="No", logprob=nats),))
    return _changed(
        Observation(
            text=text, tokens=(token,), prompt_tokens=852, cached_tokens=768, total_s=0.25, finish_reason="length"
        ),
        changes,
    )


def leg(**changes: object) -> Leg:
    return _changed(
        Leg(
            key_space=None,
            observation=observation(),
            prompt_tokens=852,
            cacheable_tokens=848,
            cached_tokens=768,
            foreign_tokens=0,
            witness=Witness.USAGE,
        ),
        changes,
    )


def fingerprint(**changes: object) -> Fingerprint:
    return _changed(
        Fingerprint(
            tool=TOOL,
            created=CREATED,
            release=release(),
            mode=Mode.FULL,
            digests=Digests(
                release=DIGEST,
                weights=DIGEST,
                kv=DIGEST,
                config=DIGEST,
                tokenizer=DIGEST,
                template=None,
                generation=None,
            ),
            fast=None,
            adapters=(),
            rule=Rule(name="llama.1", layers=2, ties_embeddings=False, is_quantized=False, reason=None),
            layers=tuple(LayerDigest(layer=layer, digest=DIGEST) for layer in range(2)),
            tensors=21,
            bytes=1_234_567,
            seconds=0.25,
            files=(),
            config=None,
            transformers_version=None,
            tensor_digests={},
            warnings=("extra.safetensors is not in the index, and no engine would load it",),
        ),
        changes,
    )


def fast_fingerprint(**changes: object) -> Fingerprint:
    fast = "kvfp1-fast:" + "0123456789abcdef" * 4
    found = fingerprint()
    kv = "kvfp1-fast/llama.1:" + "0123456789abcdef" * 4
    digests = msgspec.structs.replace(found.digests, release=fast, weights=fast, kv=kv)
    return _changed(
        msgspec.structs.replace(
            found,
            release=release(kv_name=None),
            mode=Mode.FAST,
            digests=digests,
            fast=fast,
            bound=detection_bound([((1024, 512), 1024 * 512 * 2)] * 20 + [((512,), 1024)]),
        ),
        changes,
    )


def release_check(**changes: object) -> ReleaseCheck:
    return _changed(
        ReleaseCheck(
            tool=TOOL,
            created=CREATED,
            release=release(),
            published=release(),
            mode=Mode.FULL,
            verdict=Verdict.FAIL,
            reason="not the release that was published: weights, code, kv changed; tensors: 'model.norm.weight'; "
            "files: 'modeling.py'",
            changed=("weights", "code", "kv"),
            unknown=(),
            tensors=TensorChanges(added=(), removed=(), changed=("model.norm.weight",), renamed=()),
            bound=None,
            seconds=0.25,
            files=(FileChange(name="modeling.py", edit=FileEdit.CHANGED),),
        ),
        changes,
    )


def adapter(name: str = "support", **changes: object) -> AdapterDigest:
    return _changed(
        AdapterDigest(
            name=name,
            digest="kvfp1-full/llama.1+adapter:" + "0123456789abcdef" * 4,
            kv_name="kv1-" + "c" * 32,
            content="kvfp1-adapter:" + "0123456789abcdef" * 4,
            source=f"./adapters/{name}-v3",
            tensors=120,
            bytes=3_456_789,
            config={"lora_alpha": 16, "peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"]},
            uncounted={"base_model_name_or_path": "acme/support", "revision": None},
        ),
        changes,
    )


def lone_adapter(**changes: object) -> Fingerprint:
    alone = adapter(kv_name=None, digest=adapter().content)
    return _changed(
        fingerprint(
            release=release("support-v3", kv_name=None, source="./adapters/support v3"),
            rule=Rule(
                name=ADAPTER_RULE,
                layers=None,
                ties_embeddings=False,
                is_quantized=False,
                reason="it is an adapter without its base, and KV is made by both",
            ),
            layers=(),
            adapters=(alone,),
            tensors=120,
            warnings=("it is an adapter without its base, and KV is made by both: so there is no kv name",),
        ),
        changes,
    )


def diff(**changes: object) -> Diff:
    names = tuple(f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(14))
    return _changed(
        Diff(
            tool=TOOL,
            created=CREATED,
            old=release("support-v1.2", kv_name=OLD_KV),
            release=release(),
            changed=("release", "weights", "kv"),
            tensors=TensorChanges(added=(), removed=(), changed=names, renamed=(Renamed(old="a.bias", new="b.bias"),)),
            kv=KvImpact(
                status=KvStatus.INVALID,
                layers=30,
                valid_layers=2,
                first_invalid_layer=2,
                reasons=("14 tensors changed that may touch KV from layer 2 on: 'model.layers.1.mlp.up_proj.weight'",),
            ),
            config=(ConfigChange(key="rope_theta", old=10000.0, new=500000.0, affects_kv=True),),
            drift=(),
            summary="Old KV is invalid from layer 2 on: 14 tensors changed.",
        ),
        changes,
    )


def diff_of_parts(**changes: object) -> Diff:
    """A diff in which everything but the weights changed, the runtime too."""
    runtime = RuntimeChange(
        status=RuntimeStatus.DIFFERENT,
        fields=(RuntimeField(field="version", old="0.31.0", new="0.32.0"),),
        unread=("dtype",),
        sentence="the runtime changed (version 0.31.0 → 0.32.0): the same weights make other KV",
    )
    tokenizer = TokenizerChange(
        parts=("vocabulary", "normalizer"),
        vocabulary=VocabularyChange(
            added=1,
            removed=0,
            moved=1,
            samples=(TokenSample(token="[fp8]", old=None, new=7), TokenSample(token="\x1b[31m", old=3, new=4)),
        ),
        merges=None,
        values=(ValueChange(key="normalizer", old=None, new={"type": "NFC"}),),
        counts={"vocabulary": (7, 8)},
        probe=ProbeChange(
            is_equal=False,
            old=271,
            new=272,
            first_difference=13,
            old_ids=(5, 6),
            new_ids=(7, 8),
            libraries=("a 1", "a 2"),
        ),
        not_read=("tokenizer.model is compared as a whole: its format is not read",),
        sentence="the tokenizer changed in its vocabulary",
    )
    template = TemplateChange(
        name="default",
        old_lines=2,
        new_lines=2,
        added_lines=1,
        removed_lines=1,
        excerpt=("@@ -1,2 +1,2 @@", " {{ a }}", "-[red]", "+`[/b]`"),
    )
    return _changed(
        diff(
            changed=("release", "kv", "config", "tokenizer", "template", "generation", "preprocessor"),
            unknown=("code",),
            tensors=TensorChanges(added=(), removed=(), changed=(), renamed=()),
            kv=KvImpact(
                status=KvStatus.INVALID,
                layers=30,
                valid_layers=0,
                first_invalid_layer=0,
                reasons=(runtime.sentence,),
                notes=("the chat template changed: 'default' changed (+1 −1 of 2 lines)",),
            ),
            config=(),
            summary=f"Old KV is invalid in every layer, because {runtime.sentence}; the tokenizer changed.",
            tokenizer=tokenizer,
            templates=(template,),
            generation=(ValueChange(key="temperature", old=None, new=0.6),),
            files=(
                FileChange(name="[b]notes.json", edit=FileEdit.ADDED),
                FileChange(
                    name="preprocessor_config.json",
                    edit=FileEdit.CHANGED,
                    values=(ValueChange(key="size.height", old=224, new=336),),
                ),
            ),
            runtime=runtime,
            advice=("bind the new release to a namespace of its own",),
        ),
        changes,
    )


def diff_with_drift() -> Diff:
    """A diff with every kind of record."""
    moved = {
        f"model.layers.{layer}.mlp.up_proj.weight": Sums(
            elements=1000,
            old_square=40.0,
            new_square=40.1,
            moved_square=0.004 * (layer + 1),
            largest=0.01,
            changed=900,
            non_finite=0,
        )
        for layer in range(3)
    }
    broken = Sums(elements=64, old_square=1.0, new_square=1.0, moved_square=0.5, largest=0.5, changed=9, non_finite=2)
    drifts = (
        *(measured(name, sums) for name, sums in moved.items()),
        equal("model.embed_tokens.weight", elements=5000),
        measured("model.norm.weight", broken),
        *(
            Drift(
                tensor=f"model.layers.2.mlp.{part}_proj.qweight",
                status=DriftStatus.INCOMPARABLE,
                layer=2,
                reason="it is a part of a weight in the form GPTQ or AWQ, which is not unpacked here",
            )
            for part in ("gate", "down")
        ),
    )
    notes = (
        "only in the new release: 1 tensor; only in the old one: 0 tensors; nothing is there to compare them with",
    )
    return diff(drift=drifts, drift_layers=roll_up(drifts, moved), drift_notes=notes)


def diff_with_relayouts() -> Diff:
    """A diff of a release whose tensors were laid out anew, with everything that may be known of that."""
    attention, mlp = "model.layers.{}.self_attn.", "model.layers.{}.mlp."
    relaid = (
        *(
            Relaid(
                old=tuple(f"{attention.format(layer)}{part}_proj.weight" for part in "qkv"),
                new=(f"{attention.format(layer)}qkv_proj.weight",),
                status=RelaidStatus.EQUAL,
                layout="concatenated",
            )
            for layer in range(2)
        ),
        Relaid(
            old=tuple(f"{mlp.format(0)}{part}_proj.weight" for part in ("gate", "up")),
            new=(f"{mlp.format(0)}gate_up_proj.weight",),
            status=RelaidStatus.CHANGED,
            layout="concatenated",
            changed=(f"{mlp.format(0)}up_proj.weight",),
        ),
        Relaid(
            old=tuple(f"{mlp.format(1)}{part}_proj.weight" for part in ("gate", "up")),
            new=(f"{mlp.format(1)}gate_up_proj.weight",),
            status=RelaidStatus.UNPROVEN,
            reason="both sides are saved fingerprints, which have digests and no tensors",
        ),
    )
    tensors = TensorChanges(
        added=(), removed=(), changed=(), renamed=(Renamed(old="model.a.weight", new="a.weight"),), relaid=relaid
    )
    found = diff(tensors=tensors, config=())
    reasons = tuple(relaid_reasons(relaid))
    found = msgspec.structs.replace(found, kv=msgspec.structs.replace(found.kv, reasons=reasons))
    return msgspec.structs.replace(found, summary=summarise(found))


def namespace(target: BindingTarget = BindingTarget.VLLM, **changes: object) -> NamespaceReport:
    runtime = declared_runtime({"engine": "vllm", "version": "0.32.0"})
    text = f"{NEW_KV}-{runtime.name}-e1"
    return _changed(
        NamespaceReport(
            tool=TOOL,
            created=CREATED,
            release=release(),
            namespace=text,
            kv_name=NEW_KV,
            runtime=RuntimeReport(
                digest=runtime.digest, name=runtime.name, fields=runtime.fields, unread=runtime.unread
            ),
            epoch=1,
            is_new=True,
            engine=str(target),
            settings=binding_settings(target, Wanted(namespace=text)),
        ),
        changes,
    )


def prompts(**changes: object) -> PromptsReport:
    return _changed(
        PromptsReport(
            tool=TOOL,
            created=CREATED,
            name="support",
            source="prompts/support.yaml",
            digest="kvprompts1:" + "0" * 64,
            prompts=66,
            chat=66,
            completions=0,
            total_weight=100.0,
            largest_share=0.08,
            effective_prompts=41.3,
            shared_prefixes=(
                SharedPrefix(prefix="system:returns-desk", prompts=26, share=0.55, characters=3921, tokens=735),
                SharedPrefix(prefix="system:billing-desk", prompts=40, share=0.45, characters=3402),
            ),
            warnings=(
                PromptsWarning(
                    code=WarningCode.SAME_BODY,
                    prompt_ids=("a", "b"),
                    message="prompts a, b have the same body: keep one, with the sum of the weights",
                ),
            ),
            tokens=TokenFigures(
                by="./models/v1.3",
                counted=65,
                unknown=(("it has images, whose tokens the engine decides", 1),),
                total=44005,
                shortest=12,
                longest=833,
                block_tokens=16,
                cacheable=43504,
                unique=2672,
            ),
            key_spaces=(
                KeySpaceShare(model=None, salt=None, prompts=60, share=0.9),
                KeySpaceShare(model="lora-a", salt="1fa3c09e", prompts=6, share=0.1),
            ),
            uncacheable=(
                Uncacheable(
                    reason=UncacheableReason.SHORT,
                    prompt_ids=("a", "b"),
                    share=0.03,
                    message="no longer than one block of 16 tokens",
                ),
            ),
            sensitive=(
                SensitiveFinding(prompt_id="a", kind=SensitiveKind.API_KEY, is_secret=True, count=1),
                SensitiveFinding(prompt_id="b", kind=SensitiveKind.EMAIL, is_secret=False, count=3),
            ),
        ),
        changes,
    )


def log(**changes: object) -> LogReport:
    return _changed(
        LogReport(
            tool=TOOL,
            created=CREATED,
            source="traffic.jsonl.gz",
            form=LogFormat.OPENAI,
            requests=1000,
            weight=2500.0,
            chat=900,
            completions=90,
            without_text=10,
            with_images=4,
            damaged=1,
            damage=("reading the log traffic.jsonl.gz, line 7: the line is not valid JSON (Input data was truncated)",),
            from_s=1715299200.5,
            until_s=1715302800.0,
            tokens=LoggedTokens(
                by="the log", counted=990, total=812345, longest=4096, block_tokens=16, uncacheable=3, unknown=10
            ),
            openings=100000,
            top_openings=(Opening(digest="a129ae47ec5bc0fc", requests=700.0, characters=3921),),
            key_spaces=2,
            top_key_spaces=(
                LoggedKeySpace(model="acme", salt=None, requests=2400.0),
                LoggedKeySpace(model=None, salt="1fa3c09e", requests=100.0),
            ),
            uncounted_distinct=True,
            volatile=(LoggedFinding(kind="current-date", requests=30, count=30, first="traffic.jsonl.gz, line 3"),),
            sensitive=(
                LoggedFinding(kind="api-key", requests=1, count=2, first="traffic.jsonl.gz, line 9", is_secret=True),
            ),
            secrets=1,
            not_searched=0,
        ),
        changes,
    )


def selection(**changes: object) -> Selection:
    traffic = Traffic(
        requests=2400,
        weight=2400.0,
        length=3_273_600.0,
        cacheable=3_225_600.0,
        hits=1_210_000.0,
        hit_rate=0.3696,
        ceiling=0.845,
    )
    return _changed(
        Selection(
            tool=TOOL,
            created=CREATED,
            source="traffic.jsonl",
            unit=Unit.CHARACTERS,
            block=64,
            is_trace=False,
            requests=3000,
            damaged=2,
            split=SplitBy.TIME,
            seed=0,
            budget=Budget(length=3000),
            prompts=(
                SelectedPrompt(id="line-12", line=12, weight=571.0, length=1364, new_blocks=21, saves=654_000.0),
                SelectedPrompt(id="line-7", line=7, weight=308.0, length=1290, new_blocks=20, saves=352_000.0),
            ),
            chosen_from=traffic,
            held_out=msgspec.structs.replace(traffic, requests=598, hit_rate=0.361),
            curve=(
                CurvePoint(prompts=1, length=1364, blocks=21, hit_rate=0.2, held_out_hit_rate=0.198),
                CurvePoint(prompts=2, length=2654, blocks=41, hit_rate=0.3696, held_out_hit_rate=0.361),
            ),
            proved_share=0.93,
            undercount=0.0,
            key_spaces=1,
            uncacheable_weight=12.0,
            warnings=("lengths are characters, not tokens",),
        ),
        changes,
    )


def plan(**changes: object) -> Plan:
    return _changed(
        Plan(
            prompts=66,
            prompt_tokens=44005,
            cacheable_tokens=43504,
            lower_bound_tokens=2885,
            blocks_needed=167,
            blocks_available=None,
            expected_hit_rate=0.934,
            dropped=("seldom-asked",),
            uncacheable=("hello",),
            order=("a", "b", "c"),
        ),
        changes,
    )


def replica(url: str = REPLICA, **changes: object) -> ReplicaResult:
    return _changed(
        ReplicaResult(
            url=url,
            planned=3,
            sent=3,
            touched=3,
            errors=0,
            retries=0,
            foreign_tokens=0,
            computed_tokens=2885,
            cached_tokens=41120,
            over_lower_bound=1.0,
            hit_rate_before=0.0,
            hit_rate_after=0.987,
            evicted=0,
            ttft_cold_ms=Percentiles(p50=1300.4, p95=1422.1),
            ttft_warm_ms=Percentiles(p50=170.2, p95=180.9),
            control=ControlResult(hits=True, cached_tokens=48, prompt_tokens=64),
            witness="usage",
        ),
        changes,
    )


def unknown_replica(url: str) -> ReplicaResult:
    """Nothing could be told of it."""
    return replica(
        url,
        sent=1,
        foreign_tokens=None,
        computed_tokens=None,
        cached_tokens=None,
        over_lower_bound=None,
        hit_rate_before=None,
        hit_rate_after=None,
        ttft_cold_ms=Percentiles(p50=None, p95=None),
        ttft_warm_ms=Percentiles(p50=None, p95=None),
        control=None,
        witness="nobody",
        fault=Fault(where=url, exit_code=5, message=f"POST {url}/v1/chat/completions: no answer within 120 s"),
    )


def prewarm(**changes: object) -> PrewarmReport:
    return _changed(
        PrewarmReport(
            tool=TOOL,
            created=CREATED,
            release=release(),
            namespace=NAMESPACE,
            key_space=NAMESPACE,
            prompt_set="kvprompts1:" + "0" * 64,
            verdict=Verdict.INCONCLUSIVE,
            reason="http://vllm-1.vllm.prod.svc:8000: no answer within 120 s",
            plan=plan(),
            replicas=(replica(), unknown_replica("http://vllm-1.vllm.prod.svc:8000")),
        ),
        changes,
    )


def record(**changes: object) -> Record:
    return _changed(
        Record(
            tool=TOOL,
            created=CREATED,
            release=release("support-v1.2", kv_name=OLD_KV),
            namespace=f"{OLD_KV}-undeclared-e0",
            key_space=None,
            prompt_set="kvprompts1:" + "0" * 64,
            engine=EngineRef(kind="vllm", version="0.32.0", url=REPLICA, model="support"),
            observations=(
                RecordedObservation(id="returns-1", prefix="system:returns-desk", weight=2.0, leg=leg()),
                RecordedObservation(
                    id="billing-1",
                    prefix="system:billing-desk",
                    weight=1.0,
                    leg=leg(cached_tokens=None, foreign_tokens=None, witness=Witness.NOBODY),
                ),
            ),
            foreign_tokens=None,
        ),
        changes,
    )


def check(check_id: CheckId, verdict: CheckVerdict, detail: str) -> Check:
    return Check(id=check_id, verdict=verdict, detail=detail, replica=REPLICA)


def probe(number: int, verdict: ProbeVerdict, **changes: object) -> ProbeJudgement:
    return _changed(
        ProbeJudgement(
            id=f"returns-opened-item-{number}",
            replica=REPLICA,
            prefix="system:returns-desk",
            verdict=verdict,
            detail="above the floor in all of 4 production legs",
            distance=0.2803,
            cached_tokens=768,
            foreign_tokens=768,
            first_divergence=6,
            closer_to=CloserTo.OLD,
        ),
        changes,
    )


def diagnosis(**changes: object) -> Diagnosis:
    return _changed(
        Diagnosis(
            replica=REPLICA,
            cause=CauseFound(cause=Cause.CACHE, why="over an emptied cache all of 1 stale probes are clean"),
            prefixes=(
                StalePrefix(
                    prefix="system:returns-desk",
                    probe="returns-opened-item-1",
                    stale=1,
                    suspect=1,
                    cached_tokens=768,
                    stale_from=256,
                    block_tokens=32,
                    why_not_from=None,
                    foreign_from=0,
                    tiers={Tier.STORAGE: 512, Tier.DEVICE: 256},
                    closeness=Closeness(to_old=0.6, to_hybrid=0.021, to_new=0.2803, closer_to=CloserTo.HYBRID),
                ),
                StalePrefix(
                    prefix="system:billing-desk",
                    probe="billing-1",
                    stale=1,
                    suspect=0,
                    cached_tokens=None,
                    stale_from=None,
                    block_tokens=32,
                    why_not_from="the entries are gone",
                    foreign_from=None,
                    tiers={},
                ),
            ),
            next_steps=(
                NextStep(
                    action=Action.STORE,
                    text=f"restart {REPLICA} over a store of the release's own, named {NAMESPACE}",
                    detail="the old store fills the cache again after any flush or restart",
                ),
                NextStep(
                    action=Action.FLUSH,
                    text=f"empty the cache of {REPLICA}, and prewarm it",
                    call="POST /reset_prefix_cache, or kvrelease prewarm --allow-flush",
                ),
            ),
        ),
        changes,
    )


def verify(**changes: object) -> VerifyReport:
    return _changed(
        VerifyReport(
            tool=TOOL,
            created=CREATED,
            release=release(),
            verdict=Verdict.FAIL,
            reason="failed: consistency",
            namespace=NAMESPACE,
            claim=Claim(confidence=0.95, stale_below=0.25, population="requests like the 66 prompts of the set"),
            checks=(
                check(CheckId.IDENTITY, CheckVerdict.NOTE, "unproven: no golden record and no release in process"),
                check(CheckId.CONTROL, CheckVerdict.PASS, "a unique prompt of 64 tokens, sent twice, hit 48"),
                check(
                    CheckId.CONSISTENCY,
                    CheckVerdict.FAIL,
                    "1 of 11 probes answers from KV that this release did not make (threshold 0.0000 nats from 22 "
                    "clean pairs). Stop traffic to this replica; flush its cache or bump the epoch; verify again",
                ),
            ),
            binding=BindingResult(bound=False, proof="a nonce sent inside the namespace did not hit as production"),
            exposure=(ExposureResult(key_space=NAMESPACE, cached_tokens=None, verdict=SpaceVerdict.CLEAN),),
            probes=(
                probe(1, ProbeVerdict.STALE),
                probe(
                    2, ProbeVerdict.SUSPECT, distance=None, foreign_tokens=None, first_divergence=None, closer_to=None
                ),
                probe(3, ProbeVerdict.CLEAN, distance=0.0),
            ),
            stale=StaleShare(count=1, of=3, rate=1 / 3, lower=0.0084, upper=0.9057),
            noise_floor=NoiseFloor(pairs=22, p50=0.0, max=None, quantum=None),
            power=PowerResult(stale_clean_distance=None, status="unknown"),
            prefixes=1,
            skipped=("hello",),
            cost=Cost(requests=64, retries=0, tokens=39660, computed_tokens=12480, seconds=3.5),
            diagnosis=(diagnosis(),),
            method="suspects are judged by reproduction in every repeat",
        ),
        changes,
    )


def demo(**changes: object) -> DemoReport:
    def figures(name: Strategy, *, consistency: float, hit_rate_new: float, computed: int) -> StrategyFigures:
        return StrategyFigures(
            name=name,
            hit_rate_old=0.9,
            hit_rate_new=hit_rate_new,
            consistency=consistency,
            consistency_old=1.0 - (1.0 - consistency) / 50,
            computed_tokens_new=computed,
            ttft_ms_p50=3.25,
            key_us=14.125,
        )

    def gate(strategy: Strategy, verdict: Verdict, *, stale: int, suspect: int) -> Gate:
        return Gate(
            strategy=strategy,
            verdict=verdict,
            reason="its own words",
            probes=11,
            stale=stale,
            suspect=suspect,
            stale_below=0.25,
        )

    return _changed(
        DemoReport(
            tool=TOOL,
            created=CREATED,
            old=release("v1", kv_name=OLD_KV, source="kvrelease/data/demo/v1"),
            new=release("v2", source="kvrelease/data/demo/v2"),
            strategies=(
                figures(Strategy.TOKENS_ONLY, consistency=0.25, hit_rate_new=0.95, computed=950),
                figures(Strategy.BOUND, consistency=1.0, hit_rate_new=0.9, computed=1832),
            ),
            ttft_spread=0.04,
            ttft_gap=0.01,
            ttft_requests=231,
            example=Example(
                question="How many days do I have to return something?",
                old="You have 60 days from delivery to return an item.",
                stale="You have 60 days of the refund.",
                clean="You have 14 days from delivery. After that we cannot take it back.",
                cached_tokens=192,
                prompt_tokens=198,
            ),
            stale=90,
            stale_of_neither=88,
            impact=Impact(status=KvStatus.INVALID, summary="Old KV is invalid from layer 0 on: 38 tensors changed."),
            gates=(
                gate(Strategy.TOKENS_ONLY, Verdict.FAIL, stale=6, suspect=5),
                gate(Strategy.BOUND, Verdict.PASS, stale=0, suspect=0),
            ),
            requests=300,
            moved=120,
            different=38,
            questions=40,
            prompt_set="prompts/demo.yaml",
            seconds=61.5,
        ),
        changes,
    )


def reload(**changes: object) -> ReloadReport:
    """A replica that serves the new release, one that stayed closed, and one that was left alone for that."""

    def steps(*outcomes: tuple[Step, Outcome, str]) -> tuple[Taken, ...]:
        return tuple(Taken(step=step, outcome=how, seconds=0.5, detail=found) for step, how, found in outcomes)

    began = ((Step.HOLD, Outcome.DONE, "3 requests in flight"), (Step.DRAIN, Outcome.DONE, ""))
    swapped = ((Step.SWAP, Outcome.DONE, "the engine says that it loaded /models/v1.3"),)
    good = ReplicaReload(
        url=REPLICA,
        old_namespace=f"{OLD_KV}-undeclared-e0",
        new_namespace=NAMESPACE,
        gate="open",
        ending=Ending.NEW,
        steps=steps(*began, *swapped, (Step.RESUME_NEW, Outcome.DONE, "8 requests waited, and go on")),
        hold_s=2.0,
        held=8,
        verdict=Verdict.INCONCLUSIVE,
        reason="the new release is served; its weights are unproven, as there was nothing to ask them",
        next_step="kvrelease verify",
    )
    closed = msgspec.structs.replace(
        good,
        url="http://10.0.12.35:8000",
        ending=Ending.CLOSED,
        steps=steps(*began, (Step.SWAP, Outcome.LOST, "no answer within 600 s"), (Step.CLOSE, Outcome.DONE, "")),
        verdict=Verdict.FAIL,
        reason="the gate is closed, and everybody is turned away; load the new weights: no answer",
        next_step="restart the engine",
    )
    report = ReloadReport(
        tool=TOOL,
        created=CREATED,
        release=release(),
        namespace=NAMESPACE,
        replicas=(good, closed),
        not_reached=("http://10.0.12.36:8000",),
        verdict=Verdict.FAIL,
        reason=f"{closed.url}: {closed.reason}; left alone: http://10.0.12.36:8000",
    )
    return _changed(report, changes)


def every_kind() -> dict[str, Artifact]:
    """One artifact of each kind, by the name of its command."""
    return {
        "fingerprint": fingerprint(),
        "check": release_check(),
        "diff": diff(),
        "namespace": namespace(),
        "prompts": prompts(),
        "selection": selection(),
        "log": log(),
        "prewarm": prewarm(),
        "record": record(),
        "reload": reload(),
        "verify": verify(),
        "demo": demo(),
    }


def every_page() -> dict[str, Artifact]:
    """One artifact for each shape of page."""
    return {
        **every_kind(),
        "fingerprint-adapters": fingerprint(adapters=(adapter(), adapter("billing", kv_name=None)), warnings=()),
        "fingerprint-adapter": lone_adapter(),
        "selection-all": selection(
            prompts=(), curve=(), held_out=None, split=SplitBy.NONE, is_trace=True, damaged=0, uncacheable_weight=0.0
        ),
        "diff-parts": diff_of_parts(),
        "diff-drift": diff_with_drift(),
        "diff-relaid": diff_with_relayouts(),
        "diff-adapters": diff(adapters=AdapterChanges(added=("billing",), changed=("support",))),
    }
