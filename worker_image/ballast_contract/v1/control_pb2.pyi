from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Residency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESIDENCY_UNSPECIFIED: _ClassVar[Residency]
    RESIDENCY_UNPINNED: _ClassVar[Residency]
    RESIDENCY_SYSTEM: _ClassVar[Residency]
    RESIDENCY_DEVICE: _ClassVar[Residency]

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_NONE: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
    TIER_DEVICE: _ClassVar[Tier]

class ModelPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_PHASE_UNSPECIFIED: _ClassVar[ModelPhase]
    MODEL_PHASE_PENDING: _ClassVar[ModelPhase]
    MODEL_PHASE_BUILDING: _ClassVar[ModelPhase]
    MODEL_PHASE_PREPARED: _ClassVar[ModelPhase]
    MODEL_PHASE_LOADING: _ClassVar[ModelPhase]
    MODEL_PHASE_LOADED: _ClassVar[ModelPhase]
    MODEL_PHASE_REFUSED: _ClassVar[ModelPhase]

class WorkerPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_PHASE_UNSPECIFIED: _ClassVar[WorkerPhase]
    WORKER_PHASE_STARTING: _ClassVar[WorkerPhase]
    WORKER_PHASE_REFUSED: _ClassVar[WorkerPhase]
    WORKER_PHASE_READY: _ClassVar[WorkerPhase]
    WORKER_PHASE_DRAINING: _ClassVar[WorkerPhase]

class CompactionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPACTION_MODE_UNSPECIFIED: _ClassVar[CompactionMode]
    COMPACTION_MODE_MOVE: _ClassVar[CompactionMode]
    COMPACTION_MODE_FREE: _ClassVar[CompactionMode]
RESIDENCY_UNSPECIFIED: Residency
RESIDENCY_UNPINNED: Residency
RESIDENCY_SYSTEM: Residency
RESIDENCY_DEVICE: Residency
TIER_UNSPECIFIED: Tier
TIER_NONE: Tier
TIER_HOST: Tier
TIER_DEVICE: Tier
MODEL_PHASE_UNSPECIFIED: ModelPhase
MODEL_PHASE_PENDING: ModelPhase
MODEL_PHASE_BUILDING: ModelPhase
MODEL_PHASE_PREPARED: ModelPhase
MODEL_PHASE_LOADING: ModelPhase
MODEL_PHASE_LOADED: ModelPhase
MODEL_PHASE_REFUSED: ModelPhase
WORKER_PHASE_UNSPECIFIED: WorkerPhase
WORKER_PHASE_STARTING: WorkerPhase
WORKER_PHASE_REFUSED: WorkerPhase
WORKER_PHASE_READY: WorkerPhase
WORKER_PHASE_DRAINING: WorkerPhase
COMPACTION_MODE_UNSPECIFIED: CompactionMode
COMPACTION_MODE_MOVE: CompactionMode
COMPACTION_MODE_FREE: CompactionMode

class Failure(_message.Message):
    __slots__ = ("reason", "message", "permanent", "exit_code")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    permanent: bool
    exit_code: int
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., permanent: _Optional[bool] = ..., exit_code: _Optional[int] = ...) -> None: ...

class Batching(_message.Message):
    __slots__ = ("max_size", "max_delay_milliseconds")
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_DELAY_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    max_size: int
    max_delay_milliseconds: int
    def __init__(self, max_size: _Optional[int] = ..., max_delay_milliseconds: _Optional[int] = ...) -> None: ...

class AssignedModel(_message.Message):
    __slots__ = ("name", "object", "uri", "digest", "residency", "batching")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    name: str
    object: str
    uri: str
    digest: str
    residency: Residency
    batching: Batching
    def __init__(self, name: _Optional[str] = ..., object: _Optional[str] = ..., uri: _Optional[str] = ..., digest: _Optional[str] = ..., residency: _Optional[_Union[Residency, str]] = ..., batching: _Optional[_Union[Batching, _Mapping]] = ...) -> None: ...

class RouteTable(_message.Message):
    __slots__ = ("version", "base_version", "routes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    base_version: int
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    def __init__(self, version: _Optional[int] = ..., base_version: _Optional[int] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("model", "workers")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    workers: _containers.RepeatedCompositeFieldContainer[Endpoint]
    def __init__(self, model: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("worker", "host", "http_port", "grpc_port")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HTTP_PORT_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    host: str
    http_port: int
    grpc_port: int
    def __init__(self, worker: _Optional[str] = ..., host: _Optional[str] = ..., http_port: _Optional[int] = ..., grpc_port: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("epoch", "instance_id", "sequence")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    instance_id: str
    sequence: int
    def __init__(self, epoch: _Optional[int] = ..., instance_id: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("instance_id", "sequence", "epoch", "full", "change", "heartbeat")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    sequence: int
    epoch: int
    full: WorkerState
    change: StateChange
    heartbeat: Heartbeat
    def __init__(self, instance_id: _Optional[str] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., full: _Optional[_Union[WorkerState, _Mapping]] = ..., change: _Optional[_Union[StateChange, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("authorities",)
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    authorities: str
    def __init__(self, authorities: _Optional[str] = ...) -> None: ...

class StateChange(_message.Message):
    __slots__ = ("models", "removed", "device", "condition", "assignment_generation", "host")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    removed: _containers.RepeatedScalarFieldContainer[str]
    device: DeviceState
    condition: WorkerCondition
    assignment_generation: int
    host: HostState
    def __init__(self, models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ..., device: _Optional[_Union[DeviceState, _Mapping]] = ..., condition: _Optional[_Union[WorkerCondition, _Mapping]] = ..., assignment_generation: _Optional[int] = ..., host: _Optional[_Union[HostState, _Mapping]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("name", "version", "backend", "device_kind", "condition", "assignment_generation", "device", "host", "models", "plan")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KIND_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    backend: str
    device_kind: str
    condition: WorkerCondition
    assignment_generation: int
    device: DeviceState
    host: HostState
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    plan: Plan
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., backend: _Optional[str] = ..., device_kind: _Optional[str] = ..., condition: _Optional[_Union[WorkerCondition, _Mapping]] = ..., assignment_generation: _Optional[int] = ..., device: _Optional[_Union[DeviceState, _Mapping]] = ..., host: _Optional[_Union[HostState, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class WorkerCondition(_message.Message):
    __slots__ = ("phase", "failure", "message")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    phase: WorkerPhase
    failure: Failure
    message: str
    def __init__(self, phase: _Optional[_Union[WorkerPhase, str]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class DeviceState(_message.Message):
    __slots__ = ("budget_bytes", "weights_bytes", "pinned_bytes", "in_use_bytes", "free_bytes", "largest_free_bytes", "scratch_bytes", "loads_total", "evictions_total", "admission_failures_total", "fallback_compactions_total", "largest_waiting_bytes", "leaked_bytes")
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_USE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FAILURES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_COMPACTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LARGEST_WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEAKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    weights_bytes: int
    pinned_bytes: int
    in_use_bytes: int
    free_bytes: int
    largest_free_bytes: int
    scratch_bytes: int
    loads_total: int
    evictions_total: int
    admission_failures_total: int
    fallback_compactions_total: int
    largest_waiting_bytes: int
    leaked_bytes: int
    def __init__(self, budget_bytes: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., pinned_bytes: _Optional[int] = ..., in_use_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., largest_free_bytes: _Optional[int] = ..., scratch_bytes: _Optional[int] = ..., loads_total: _Optional[int] = ..., evictions_total: _Optional[int] = ..., admission_failures_total: _Optional[int] = ..., fallback_compactions_total: _Optional[int] = ..., largest_waiting_bytes: _Optional[int] = ..., leaked_bytes: _Optional[int] = ...) -> None: ...

class HostState(_message.Message):
    __slots__ = ("budget_bytes", "cached_bytes", "hits_total", "misses_total")
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MISSES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    cached_bytes: int
    hits_total: int
    misses_total: int
    def __init__(self, budget_bytes: _Optional[int] = ..., cached_bytes: _Optional[int] = ..., hits_total: _Optional[int] = ..., misses_total: _Optional[int] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("name", "object", "phase", "tier", "residency", "failure", "message", "digest", "weights_bytes", "largest_tensor_bytes", "scratch_bytes", "code_bytes", "load_milliseconds", "requests_total", "rows_total", "compute_seconds_total", "dispatches_total", "queue_depth", "max_batch_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    CODE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ROWS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DISPATCHES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    object: str
    phase: ModelPhase
    tier: Tier
    residency: Residency
    failure: Failure
    message: str
    digest: str
    weights_bytes: int
    largest_tensor_bytes: int
    scratch_bytes: int
    code_bytes: int
    load_milliseconds: int
    requests_total: int
    rows_total: int
    compute_seconds_total: float
    dispatches_total: int
    queue_depth: int
    max_batch_size: int
    def __init__(self, name: _Optional[str] = ..., object: _Optional[str] = ..., phase: _Optional[_Union[ModelPhase, str]] = ..., tier: _Optional[_Union[Tier, str]] = ..., residency: _Optional[_Union[Residency, str]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., message: _Optional[str] = ..., digest: _Optional[str] = ..., weights_bytes: _Optional[int] = ..., largest_tensor_bytes: _Optional[int] = ..., scratch_bytes: _Optional[int] = ..., code_bytes: _Optional[int] = ..., load_milliseconds: _Optional[int] = ..., requests_total: _Optional[int] = ..., rows_total: _Optional[int] = ..., compute_seconds_total: _Optional[float] = ..., dispatches_total: _Optional[int] = ..., queue_depth: _Optional[int] = ..., max_batch_size: _Optional[int] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("epoch", "uri", "digest")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    uri: str
    digest: str
    def __init__(self, epoch: _Optional[int] = ..., uri: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("digest", "name", "weights_bytes", "largest_tensor_bytes", "tensors", "programs", "platforms")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    digest: str
    name: str
    weights_bytes: int
    largest_tensor_bytes: int
    tensors: int
    programs: int
    platforms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digest: _Optional[str] = ..., name: _Optional[str] = ..., weights_bytes: _Optional[int] = ..., largest_tensor_bytes: _Optional[int] = ..., tensors: _Optional[int] = ..., programs: _Optional[int] = ..., platforms: _Optional[_Iterable[str]] = ...) -> None: ...

class ApplyAssignmentRequest(_message.Message):
    __slots__ = ("epoch", "generation", "models", "routes", "node_workers")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    NODE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    generation: int
    models: _containers.RepeatedCompositeFieldContainer[AssignedModel]
    routes: RouteTable
    node_workers: int
    def __init__(self, epoch: _Optional[int] = ..., generation: _Optional[int] = ..., models: _Optional[_Iterable[_Union[AssignedModel, _Mapping]]] = ..., routes: _Optional[_Union[RouteTable, _Mapping]] = ..., node_workers: _Optional[int] = ...) -> None: ...

class ApplyAssignmentResponse(_message.Message):
    __slots__ = ("instance_id", "generation", "route_version", "refused")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    generation: int
    route_version: int
    refused: _containers.RepeatedCompositeFieldContainer[ModelVerdict]
    def __init__(self, instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., route_version: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[ModelVerdict, _Mapping]]] = ...) -> None: ...

class ModelVerdict(_message.Message):
    __slots__ = ("name", "failure")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    failure: Failure
    def __init__(self, name: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class CompactMemoryRequest(_message.Message):
    __slots__ = ("epoch", "mode", "reload_models")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    RELOAD_MODELS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    mode: CompactionMode
    reload_models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., mode: _Optional[_Union[CompactionMode, str]] = ..., reload_models: _Optional[_Iterable[str]] = ...) -> None: ...

class CompactMemoryResponse(_message.Message):
    __slots__ = ("reloaded", "resident_bytes_after", "largest_free_before", "largest_free_after", "fragmentation_before", "fragmentation_after", "moved_bytes", "seconds_until_moved", "seconds_until_callable", "not_reloaded")
    RELOADED_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_AFTER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTATION_BEFORE_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTATION_AFTER_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_UNTIL_MOVED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_UNTIL_CALLABLE_FIELD_NUMBER: _ClassVar[int]
    NOT_RELOADED_FIELD_NUMBER: _ClassVar[int]
    reloaded: _containers.RepeatedScalarFieldContainer[str]
    resident_bytes_after: int
    largest_free_before: int
    largest_free_after: int
    fragmentation_before: float
    fragmentation_after: float
    moved_bytes: int
    seconds_until_moved: float
    seconds_until_callable: float
    not_reloaded: _containers.RepeatedCompositeFieldContainer[ModelVerdict]
    def __init__(self, reloaded: _Optional[_Iterable[str]] = ..., resident_bytes_after: _Optional[int] = ..., largest_free_before: _Optional[int] = ..., largest_free_after: _Optional[int] = ..., fragmentation_before: _Optional[float] = ..., fragmentation_after: _Optional[float] = ..., moved_bytes: _Optional[int] = ..., seconds_until_moved: _Optional[float] = ..., seconds_until_callable: _Optional[float] = ..., not_reloaded: _Optional[_Iterable[_Union[ModelVerdict, _Mapping]]] = ...) -> None: ...

class SetModelResidencyRequest(_message.Message):
    __slots__ = ("epoch", "name", "residency")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    name: str
    residency: Residency
    def __init__(self, epoch: _Optional[int] = ..., name: _Optional[str] = ..., residency: _Optional[_Union[Residency, str]] = ...) -> None: ...

class SetModelResidencyResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelState
    def __init__(self, model: _Optional[_Union[ModelState, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPlanRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class GetPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("budget_bytes", "lines", "fits", "minimum_bytes", "shortfall_bytes", "knobs", "driver_used_bytes", "host")
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_BYTES_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    lines: _containers.RepeatedCompositeFieldContainer[PlanLine]
    fits: bool
    minimum_bytes: int
    shortfall_bytes: int
    knobs: _containers.RepeatedCompositeFieldContainer[Knob]
    driver_used_bytes: int
    host: HostPlan
    def __init__(self, budget_bytes: _Optional[int] = ..., lines: _Optional[_Iterable[_Union[PlanLine, _Mapping]]] = ..., fits: _Optional[bool] = ..., minimum_bytes: _Optional[int] = ..., shortfall_bytes: _Optional[int] = ..., knobs: _Optional[_Iterable[_Union[Knob, _Mapping]]] = ..., driver_used_bytes: _Optional[int] = ..., host: _Optional[_Union[HostPlan, _Mapping]] = ...) -> None: ...

class HostPlan(_message.Message):
    __slots__ = ("lines", "fits", "minimum_bytes", "shortfall_bytes", "knobs", "limit_bytes", "mount_bytes")
    LINES_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_BYTES_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MOUNT_BYTES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[PlanLine]
    fits: bool
    minimum_bytes: int
    shortfall_bytes: int
    knobs: _containers.RepeatedCompositeFieldContainer[Knob]
    limit_bytes: int
    mount_bytes: int
    def __init__(self, lines: _Optional[_Iterable[_Union[PlanLine, _Mapping]]] = ..., fits: _Optional[bool] = ..., minimum_bytes: _Optional[int] = ..., shortfall_bytes: _Optional[int] = ..., knobs: _Optional[_Iterable[_Union[Knob, _Mapping]]] = ..., limit_bytes: _Optional[int] = ..., mount_bytes: _Optional[int] = ...) -> None: ...

class PlanLine(_message.Message):
    __slots__ = ("line", "bytes", "minimum_bytes", "source", "knob")
    LINE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    KNOB_FIELD_NUMBER: _ClassVar[int]
    line: str
    bytes: int
    minimum_bytes: int
    source: str
    knob: str
    def __init__(self, line: _Optional[str] = ..., bytes: _Optional[int] = ..., minimum_bytes: _Optional[int] = ..., source: _Optional[str] = ..., knob: _Optional[str] = ...) -> None: ...

class Knob(_message.Message):
    __slots__ = ("key", "value", "current")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    current: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., current: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("epoch", "model", "limit")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    model: str
    limit: int
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("sequence", "unix_seconds", "model", "kind", "verdict", "needed_bytes", "free_bytes", "largest_free_bytes", "candidates", "evicted", "moved_bytes", "failure")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    NEEDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    unix_seconds: float
    model: str
    kind: str
    verdict: str
    needed_bytes: int
    free_bytes: int
    largest_free_bytes: int
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    evicted: _containers.RepeatedScalarFieldContainer[str]
    moved_bytes: int
    failure: Failure
    def __init__(self, sequence: _Optional[int] = ..., unix_seconds: _Optional[float] = ..., model: _Optional[str] = ..., kind: _Optional[str] = ..., verdict: _Optional[str] = ..., needed_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., largest_free_bytes: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., evicted: _Optional[_Iterable[str]] = ..., moved_bytes: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("model", "bytes", "priority", "queued", "chosen", "excluded")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    model: str
    bytes: int
    priority: float
    queued: bool
    chosen: bool
    excluded: str
    def __init__(self, model: _Optional[str] = ..., bytes: _Optional[int] = ..., priority: _Optional[float] = ..., queued: _Optional[bool] = ..., chosen: _Optional[bool] = ..., excluded: _Optional[str] = ...) -> None: ...
