"""Why ranks end, and why hosts do not meet. Codes E48 and W48."""

from __future__ import annotations

from dnnc.build.faults import EMULATE
from ir.core.diagnostics import Fault

_ALIKE = "run 'dnnc train' alike on all hosts, but for --node"
_MAKE_SECRET = (
    "make one on one host (umask 077; head -c 32 /dev/urandom | base64 > dnnc.secret), then copy the file to the others"
)
_SAME_SECRET = "give the same secret to all hosts"


class RankFailed(Fault, code="E4801"):
    """A rank ended with an error of its own, and with it the training."""

    message = "{reason}{in_place}, while {doing}"
    hint = "{advice}"
    reason: str
    place: str
    doing: str
    advice: str

    @property
    def in_place(self) -> str:
        return f" ({self.place})" if self.place else ""


class RankLost(Fault, code="E4802"):
    """A rank ended because another one of this host did not answer."""

    message = "it lost another rank, while {doing}"
    hint = "the others say why they ended"
    doing: str


class HostLost(Fault, code="E4803"):
    """A rank ended because one on another host did not answer."""

    message = "it lost a rank on another host, while {doing}"
    hint = "its 'dnnc train' says why; or it cannot be reached any more"
    doing: str


class RankStalled(Fault, code="E4804"):
    """A rank stood still for longer than --timeout, and others waited for it."""

    message = "it did not go on for {seconds:g} s, while {doing}"
    hint = "a longer --timeout lets it take longer"
    seconds: float
    doing: str


class RanksSilent(Fault, code="E4805"):
    """All ranks ended, and none said why."""

    message = "its ranks ended, and none says why"
    note = "{last_words}"
    last_words: str


class OtherNumberOfHosts(Fault, code="E4806"):
    """--nodes is not the number of hosts that the plan was made for."""

    message = "the plan is for {count} host{plural}: {hosts}"
    hint = EMULATE
    count: int
    hosts: str

    @property
    def plural(self) -> str:
        return "s" if self.count > 1 else ""


class RanksUneven(Fault, code="E4807"):
    """With --emulate all hosts take equal numbers of ranks, and --nodes does not divide the number of devices."""

    message = "{hosts} hosts cannot take equal numbers of ranks"
    hint = "the plan has {devices} devices: choose a divisor of them"
    hosts: int
    devices: int


class MeetingPlaceMissing(Fault, code="E4808"):
    """Training on several hosts needs --meet."""

    message = "hosts must know where to meet"
    hint = "give HOST:PORT of the first to all of them"


class NodeOutside(Fault, code="E4809"):
    """--node is not one of 0 to --nodes minus 1."""

    message = "this host is {node}, of {nodes} counted from 0"
    node: int
    nodes: int


class SecretMissing(Fault, code="E4810"):
    """Training on several hosts needs a secret that all of them hold."""

    message = "hosts must prove to each other that they share a secret"
    hint = f"{_MAKE_SECRET}, and give --secret dnnc.secret to each; or set {{variable}} to its text"
    variable: str


class SecretTooShort(Fault, code="E4811"):
    """The secret is so short that it could be guessed."""

    message = "a secret has at least {least} characters"
    hint = _MAKE_SECRET
    least: int


class SecretTooLong(Fault, code="E4812"):
    """The file of the secret is so long that it is likely another file."""

    message = "a secret has at most {most} bytes"
    hint = _MAKE_SECRET
    most: int


class SecretReadable(Fault, code="E4813"):
    """The permissions of the file of the secret let other users of the machine read it."""

    message = "other users of this machine may read the secret"
    hint = "chmod 600 {file}"
    file: str


class NotHostPort(Fault, code="E4814"):
    """The value of --meet is not HOST:PORT."""

    message = "it is no HOST:PORT"
    hint = "for example --meet 10.0.0.1:29500"


class HostUnknown(Fault, code="E4815"):
    """The name of the host in --meet resolves to no address."""

    message = "there is no such host: {reason}"
    reason: str


class AddressOfMany(Fault, code="E4816"):
    """The address in --meet is none of a single host: it is a wildcard, a multicast or a broadcast address."""

    message = "it stands for {meaning}"
    hint = "name the address of the first host that the others reach"
    meaning: str


class CannotListen(Fault, code="E4817"):
    """The first host cannot listen on the address in --meet."""

    message = "cannot listen there: {reason}"
    hint = "the first host (--node 0) listens on an address of its own, on a port that is free"
    reason: str


class HostWithoutSecret(Fault, code="W4818"):
    """A host connected to the first one and did not prove the secret; the first host goes on waiting for the others."""

    message = "a host at {address} tried to join and does not hold the secret of this one"
    hint = f"{_SAME_SECRET}; this one goes on waiting"
    address: str


class HostsDiffer(Fault, code="E4819"):
    """Two hosts have another build, other options, or the same --node."""

    message = "{difference}"
    hint = _ALIKE
    difference: str


class HostsMissing(Fault, code="E4820"):
    """Hosts did not come to the meeting within --timeout."""

    message = "host {hosts} did not come in time{and_strangers}"
    hint = "{secret}run 'dnnc train' with the same --nodes and --meet there; a longer --timeout lets this one wait"
    hosts: tuple[str, ...]
    strangers: tuple[str, ...]

    @property
    def and_strangers(self) -> str:
        return f"; a host at {', '.join(self.strangers)} tried to join without the secret" if self.strangers else ""

    @property
    def secret(self) -> str:
        return f"{_SAME_SECRET}; " if self.strangers else ""


class FirstHostSilent(Fault, code="E4821"):
    """Something listens at --meet, and does not greet as a first host does within --timeout."""

    message = "what listens there said nothing in time"
    hint = "does the first host (--node 0) listen there? A longer --timeout lets this one wait"


class NotAFirstHost(Fault, code="E4822"):
    """Something else than 'dnnc train' listens at --meet, or another version of it."""

    message = "what listens there is no first host of 'dnnc train'"


class FirstHostStopped(Fault, code="E4823"):
    """The first host closed the connection, or did not answer within --timeout."""

    message = "the first host did not go on"
    hint = "the first host says why, or waits for others: a longer --timeout lets this one wait"


class SecretRefused(Fault, code="E4824"):
    """The first host has another secret than this one, and refused it."""

    message = "the first host refused this one: it does not hold the same secret"
    hint = _SAME_SECRET


class FirstHostUnproven(Fault, code="E4825"):
    """What listens at --meet did not prove the secret, so this host does not join it."""

    message = "the first host does not hold the secret of this one"
    hint = _SAME_SECRET


class NoStoreTold(Fault, code="E4826"):
    """The first host proved the secret and did not say where the ranks meet: it is of another version."""

    message = "the first host does not say where the ranks meet"


class NobodyThere(Fault, code="E4827"):
    """Nobody listens at --meet within --timeout."""

    message = "nobody is there: {reason}"
    hint = "start the first host (--node 0); is its address right, and its port open?"
    reason: str


class GoesOn(Fault, code="W4828"):
    """A process or a host was lost, and training goes on by itself from the last checkpoint, as --retries allows."""

    message = "training goes on after step {step}: {reason}"
    hint = "it may do so {retries} more times (--retries)"
    step: int
    reason: str
    retries: int


class RetriesNeedCheckpoints(Fault, code="E4829"):
    """--retries goes on from a checkpoint, so there must be a folder for them; where hosts were started by hand, none of them
    can begin again for the others."""

    message = "training goes on from its last checkpoint"
    hint = "give --checkpoint DIR --every K; of several hosts, --cluster starts all"


class LogOfUnknownKind(Fault, code="E4830"):
    """--log names a file whose ending says no kind of log."""

    message = "its name ends neither in .csv nor in .jsonl"


class TensorBoardMissing(Fault, code="E4831"):
    """--tensorboard writes files by the package of that name, which is not installed."""

    message = "it needs the package tensorboard"
    hint = "pip install 'dnnc[tensorboard]'; --log FILE.csv needs none"


class EvaluationWithoutData(Fault, code="E4832"):
    """An option says how to evaluate, and none says on what."""

    message = "there are no data to evaluate on"
    hint = "give --eval-data"


class EvaluationOnCluster(Fault, code="E4833"):
    """An evaluation reads its data, and keeps the best weights, on the host of rank 0, which on a cluster is another
    machine."""

    message = "evaluations are made on one host, or on hosts that were started one by one"
    hint = "leave it out, and evaluate checkpoints"


class NoCheckpointFolder(Fault, code="E4834"):
    """--every says how often a checkpoint is written, and no option says where."""

    message = "there is no folder for checkpoints"
    hint = "add --checkpoint DIR"


class NotAFolder(Fault, code="E4835"):
    """The path is that of a file. A folder is needed there; a new one is made."""

    message = "this is a file, not a folder"
    hint = "name a folder, which may be new"


class FolderInUse(Fault, code="E4836"):
    """Two trainings at once would mix their checkpoints and losses in one folder."""

    message = "another training writes into this folder"
    hint = "wait until it has ended, or name another folder"


class OtherSeed(Fault, code="E4837"):
    """A checkpoint goes on with the data of its own seed. --seed names another."""

    message = "{checkpoint} goes on with the data of seed {seed}"
    hint = "leave --seed out"
    checkpoint: str
    seed: int
