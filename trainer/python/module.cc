// psd._psd: the client library for Python. Its user documentation is in the package psd.

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "common/os/freed_memory.h"
#include "common/types/category_hash.h"
#include "common/types/model_layout.h"
#include "trainer/python/client_arguments.h"
#include "trainer/python/python_client.h"
#include "trainer/python/python_publisher.h"
#include "trainer/python/python_versions.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

using namespace nb::literals;

Transport transportOf(const std::string& name) {
  if (name == "auto") return Transport::automatic;
  if (name == "rpc") return Transport::rpc;
  if (name == "shm") return Transport::shm;
  raise({ErrorCode::invalidArgument, "transport is 'auto', 'rpc' or 'shm', not '" + name + "'"});
}

constexpr const char* kRowInitials[] = {"zero", "uniform", "normal"};  // by RowInitial::Kind

RowInitial::Kind kindOf(const std::string& name) {
  const auto* const found = std::ranges::find(kRowInitials, name);
  if (found != std::end(kRowInitials)) return static_cast<RowInitial::Kind>(found - kRowInitials);
  raise({ErrorCode::invalidArgument, "initial is 'zero', 'uniform' or 'normal', not '" + name + "'"});
}

std::vector<uint64_t> numbersOf(const std::vector<Version>& versions) {
  std::vector<uint64_t> numbers;
  numbers.reserve(versions.size());
  for (const Version version : versions) numbers.push_back(version.value);
  return numbers;
}

std::string shown(nb::object value) { return nb::cast<std::string>(nb::repr(value)); }
std::string shown(const std::vector<Version>& versions) { return shown(nb::cast(numbersOf(versions))); }
std::string shown(const std::string& text) { return shown(nb::cast(text)); }

nb::dict shapesOf(const ModelSpec& model) {
  nb::dict shapes;
  for (const TensorSpec& tensor : model.tensors)
    shapes[tensor.name.c_str()] = nb::tuple(nb::cast(tensor.shape));
  return shapes;
}

std::vector<std::string> dtypesOf(const ModelSpec& model) {
  std::vector<std::string> dtypes;
  for (const TensorSpec& tensor : model.tensors) dtypes.emplace_back(dtypeName(tensor.dtype));
  return dtypes;
}

using TableArguments = std::tuple<std::string, uint32_t, const char*, float, uint64_t>;
std::vector<TableArguments> tablesOf(const ModelSpec& model) {
  std::vector<TableArguments> tables;
  for (const TableSpec& table : model.tables) {
    const RowInitial& initial = table.initial;
    tables.emplace_back(table.name, table.dim, kRowInitials[static_cast<size_t>(initial.kind)], initial.scale,
                        initial.seed);
  }
  return tables;
}

constexpr const char* kOutcomes[] = {"received", "applied", "stale", "late"};
constexpr const char* kAssignmentKinds[] = {"range", "nothing_now", "finished"};

std::string describe(const ModelSpec& model) {
  return fmt::format("ModelSpec(name={}, shapes={}, tables={})", shown(model.name), shown(shapesOf(model)),
                     shown(nb::cast(tablesOf(model))));
}

std::string describe(const JoinInfo& info) {
  return fmt::format(
      "JoinInfo(rank={}, world_size={}, policy={}, device={}, shards={}, initialized_model={})",
      info.rank.value, info.worldSize, shown(info.policy), shown(info.device), info.shardCount,
      info.initializedModel ? "True" : "False");
}

std::string describe(const PullInfo& info) {
  return fmt::format("PullInfo(versions={}, seconds={:.6f}, bytes={}, known_rows={})", shown(info.versions),
                     info.seconds, info.bytes, info.knownRows);
}

std::string describe(const PushInfo& info) {
  return fmt::format("PushInfo(outcome='{}', staleness={}, versions={}, seconds={:.6f}, bytes={})",
                     kOutcomes[static_cast<size_t>(info.outcome)], info.staleness, shown(info.versions),
                     info.seconds, info.bytes);
}

std::string describe(const AssignedSamples& assigned) {
  return fmt::format("AssignedSamples(what='{}', epoch={}, begin={}, count={})",
                     kAssignmentKinds[static_cast<size_t>(assigned.what)], assigned.epoch, assigned.begin,
                     assigned.count);
}

void bindModel(nb::module_& m) {
  nb::class_<ModelSpec>(m, "ModelSpec", "The names, shapes and tables of a model; psd.Model is for programs.")
      .def(nb::init<>())
      .def_rw("name", &ModelSpec::name, "The model's name.")
      .def_prop_ro("shapes", &shapesOf,
                   nb::for_getter(nb::sig("def shapes(self) -> dict[str, tuple[int, ...]]")),
                   "The shape of each tensor.")
      .def_prop_ro("dtypes", &dtypesOf, "The dtype of each tensor: \"f32\", \"bf16\" or \"f16\".")
      .def_prop_ro("tables", &tablesOf, "The arguments of psd.Table for each embedding table.")
      .def(
          "add_tensor",
          [](ModelSpec& model, std::string name, std::vector<uint64_t> shape, const std::string& dtype) {
            model.tensors.push_back({std::move(name), take(parseDType(dtype)), std::move(shape)});
          },
          "name"_a, "shape"_a, "dtype"_a)
      .def(
          "add_table",
          [](ModelSpec& model, std::string name, uint32_t dim, const std::string& initial, float scale,
             uint64_t seed) {
            model.tables.push_back({std::move(name), dim, {kindOf(initial), scale, seed}});
          },
          "name"_a, "dim"_a, "initial"_a, "scale"_a, "seed"_a)
      .def("check", [](const ModelSpec& model) { check(validateModel(model)); })
      .def("signature", &ModelSpec::signature)
      .def("layout",
           [](const ModelSpec& model) {
             const ModelLayout layout(model);
             std::vector<std::pair<uint64_t, uint64_t>> places;
             for (const TensorPlace& place : layout.places()) places.emplace_back(place.begin, place.count);
             return std::make_pair(layout.totalElements(), places);
           })
      .def("native_layout",
           [](const ModelSpec& model) {
             const ModelLayout layout(model);
             std::vector<uint64_t> begins;
             for (const TensorPlace& place : layout.places()) begins.push_back(layout.byteAt(place.begin));
             return std::make_pair(layout.byteAt(layout.totalElements()), begins);
           })
      .def("__repr__", [](const ModelSpec& model) { return describe(model); });
}

void bindJoinInfo(nb::module_& m) {
  nb::class_<JoinInfo>(m, "JoinInfo", "The daemon's answer to join() or observe().")
      .def_ro("initialized_model", &JoinInfo::initializedModel,
              "Whether this trainer sent the model's initial values.")
      .def_ro("policy", &JoinInfo::policy, "The daemon's policy, for a human reader.")
      .def_ro("device", &JoinInfo::device, "Where the daemon's shards are, for a human reader.")
      .def_ro("shards", &JoinInfo::shardCount, "Number of parts that the tensors are cut into.")
      .def_prop_ro(
          "shard_ranges",
          [](const JoinInfo& info) {
            std::vector<std::pair<uint64_t, uint64_t>> ranges;
            for (const ShardRange& shard : info.shards) ranges.emplace_back(shard.begin, shard.count);
            return ranges;
          },
          "Begin and size of each of these parts, in elements of a flat array.")
      .def_ro("row_shards", &JoinInfo::rowShardCount,
              "Number of parts that the embedding tables are cut into.")
      .def_ro("server_version", &JoinInfo::serverVersion, "The daemon's version of psd.")
      .def_ro("pull_transport", &JoinInfo::pullTransport, "How parameters travel: 'shm', 'rpc' or 'cuda'.")
      .def_ro("push_transport", &JoinInfo::pushTransport, "How gradients travel: 'shm', 'rpc' or 'cuda'.")
      .def_ro("codec", &JoinInfo::codec, "The codec of pushes; 'none': float32.")
      .def_ro("pull_codec", &JoinInfo::pullCodec, "The codec of pulls; 'none': float32.")
      .def_ro("model", &JoinInfo::model, "The daemon's model.")
      .def_prop_ro(
          "local_period", [](const JoinInfo& info) { return info.local.period; },
          "Local steps between two pushes; 0: each step's gradient is pushed.")
      .def_prop_ro(
          "local_arrivals", [](const JoinInfo& info) { return info.local.updatesPerRound; },
          "Updates of the model in each round of local steps.")
      .def_prop_ro(
          "inner", [](const JoinInfo& info) { return info.local.inner ? info.local.inner->describe() : ""; },
          "The daemon's optimizer for local steps of psd-trainer, for a human reader; '': none.")
      .def_prop_ro(
          "ends_early", [](const JoinInfo& info) { return info.local.endsEarly; },
          "Whether round_due() tells that a round of local steps is about to close.")
      .def_prop_ro(
          "streams", [](const JoinInfo& info) { return info.local.streams(); },
          "Whether the model is exchanged in fragments, or with a delay.")
      .def_prop_ro(
          "rank", [](const JoinInfo& info) { return info.rank.value; }, "The trainer's rank; 0 for a reader.")
      .def_ro("world_size", &JoinInfo::worldSize, "Ranks are below it; 0 for a reader.")
      .def_ro("connections", &JoinInfo::connections, "Number of connections in use.")
      .def_ro("optimizer", &JoinInfo::optimizer,
              "The model's optimizer, as JSON in the form of the configuration's key; '': trainers take "
              "local steps.")
      .def_ro("takes_hyperparameters", &JoinInfo::takesHyperparameters,
              "Whether pushes may carry hyperparameters, since the configuration has no optimizer.")
      .def("__repr__", [](const JoinInfo& info) { return describe(info); });
}

void bindAnswers(nb::module_& m) {
  constexpr const char* kSeconds = "Time from the call to its answer.";
  nb::class_<PullInfo>(m, "PullInfo", "The result of a pull.")
      .def_prop_ro(
          "versions", [](const PullInfo& info) { return numbersOf(info.versions); },
          "The version of each shard, then of each row shard, that was read: the basis of gradients.")
      .def_ro("seconds", &PullInfo::seconds, kSeconds)
      .def_ro("bytes", &PullInfo::bytes, "Bytes of values, as received.")
      .def_ro("known_rows", &PullInfo::knownRows, "How many of the pulled rows some push has touched.")
      .def("__repr__", [](const PullInfo& info) { return describe(info); });
  nb::class_<PushInfo>(m, "PushInfo", "The outcome of a push.")
      .def_prop_ro(
          "versions", [](const PushInfo& info) { return numbersOf(info.versions); },
          "Of each shard, then of each row shard, the newest version in the answers.")
      .def_prop_ro(
          "outcome", [](const PushInfo& info) { return kOutcomes[static_cast<size_t>(info.outcome)]; },
          "'applied', or if the gradient was dropped for some shard: 'stale' (its basis is too old) or "
          "'late' "
          "(its round is closed).")
      .def_ro("staleness", &PushInfo::staleness,
              "Updates between the gradient's basis and the push, at most.")
      .def_ro("seconds", &PushInfo::seconds, kSeconds)
      .def_ro("bytes", &PushInfo::bytes, "Bytes of the gradient, as sent.")
      .def("__repr__", [](const PushInfo& info) { return describe(info); });
  nb::class_<AssignedSamples>(m, "AssignedSamples",
                              "Assigned samples: places [begin, begin + count) of an epoch's order.")
      .def_prop_ro(
          "what",
          [](const AssignedSamples& assigned) {
            return kAssignmentKinds[static_cast<size_t>(assigned.what)];
          },
          "'range'; 'nothing_now': other trainers have the rest; 'finished': all epochs are over.")
      .def_ro("epoch", &AssignedSamples::epoch, "The epoch, from 0.")
      .def_ro("begin", &AssignedSamples::begin, "The first place.")
      .def_ro("count", &AssignedSamples::count, "Number of samples.")
      .def("__repr__", [](const AssignedSamples& assigned) { return describe(assigned); });
}

constexpr const char* kWait = "Waits for the answer and returns it, once.";
constexpr const char* kDone = "Whether wait() returns at once.";
constexpr const char* kAwait = "Waits for the answer in asyncio. Cancellation ends the wait, not the call.";

/// The class of a call in progress, without wait().
template <class Info>
nb::class_<PythonPending<Info>> pendingClass(nb::module_& m, const char* name, const char* awaits) {
  return nb::class_<PythonPending<Info>>(m, name, "A call in progress.")
      .def_prop_ro("done", &PythonPending<Info>::done, kDone)
      .def(
          "__await__",
          [](nb::handle pending) {
            return nb::module_::import_("psd._pending").attr("awaited")(pending.attr("wait"));
          },
          nb::sig(awaits), kAwait)
      .def("__repr__", [name](const PythonPending<Info>& pending) {
        return fmt::format("{}({})", name, pending.state());
      });
}

#define PSD_AWAITS(info) "def __await__(self) -> collections.abc.Generator[typing.Any, None, " info "]"

/// Converts the argument `name`, or throws an error of one line that says what is expected; nanobind's own
/// error lists all signatures.
template <class T>
T argument(nb::handle value, const char* name, const char* expected) {
  T number{};
  if (!nb::try_cast(value, number)) {
    const auto shown = nb::cast<std::string>(nb::module_::import_("psd._arguments").attr("shown")(value));
    throw nb::type_error(fmt::format("{} is {}; expected {}", name, shown, expected).c_str());
  }
  return number;
}

uint64_t elements(nb::handle value, const char* name) {
  return argument<uint64_t>(value, name, "a whole number of elements, from 0");
}

std::string tableName(nb::handle value) {
  return argument<std::string>(value, "table", "the name of a table");
}

void makeRows(PythonRows& rows, nb::handle features) {
  rows.make(argument<std::vector<std::pair<std::string, nb::object>>>(
      features, "features", "pairs of a table's name and ids, as [(\"item\", ids)]"));
}

void bindRows(nb::module_& m) {
  nb::class_<PythonRows>(m, "Rows", "The rows of embedding tables that one step uses.")
      .def("make", &makeRows, "features"_a,
           nb::sig("def make(self, features: collections.abc.Sequence[tuple[str, object]]) -> None"),
           "Sets the rows: pairs of a table's name and a flat array of ids, [(\"item\", ids), …].")
      .def(
          "ids", [](const PythonRows& rows, nb::handle table) { return rows.ids(tableName(table)); },
          "table"_a, nb::sig("def ids(self, table: str) -> numpy.typing.NDArray[numpy.uint64]"),
          "The ids of the table's rows, each once.")
      .def(
          "places",
          [](const PythonRows& rows, nb::handle feature) {
            return rows.places(argument<size_t>(feature, "feature", "its place in make()'s list, from 0"));
          },
          "feature"_a, nb::sig("def places(self, feature: int) -> numpy.typing.NDArray[numpy.int64]"),
          "For each id of a pair passed to make(), its place among the table's rows.")
      .def(
          "values", [](const PythonRows& rows, nb::handle table) { return rows.values(tableName(table)); },
          "table"_a, nb::sig("def values(self, table: str) -> numpy.typing.NDArray[numpy.float32]"),
          "The values of the table's rows, which a pull fills.")
      .def(
          "gradients",
          [](const PythonRows& rows, nb::handle table) { return rows.gradients(tableName(table)); },
          "table"_a, nb::sig("def gradients(self, table: str) -> numpy.typing.NDArray[numpy.float32]"),
          "The gradients of the table's rows, which a push sends; initially zeros.")
      .def("__len__", &PythonRows::count, "Number of rows, of all tables.")
      .def("__repr__",
           [](const PythonRows& rows) { return fmt::format("<psd.Rows of {} rows>", rows.count()); });
}

void bindCalls(nb::module_& m) {
  pendingClass<PullInfo>(m, "PendingPull", PSD_AWAITS("PullInfo"))
      .def("wait", &PythonPending<PullInfo>::wait, kWait);
  pendingClass<PushInfo>(m, "PendingPush", PSD_AWAITS("PushInfo"))
      .def("wait", &PythonPending<PushInfo>::wait, kWait);
  pendingClass<RoundDue>(m, "PendingRoundDue", PSD_AWAITS("str"))
      .def(
          "wait",
          [](PythonPending<RoundDue>& pending) {
            const RoundDue due = pending.wait();
            return due == RoundDue::closing ? "closing" : due == RoundDue::closed ? "closed" : "steps_done";
          },
          kWait);
  nb::class_<PythonPartialPush>(m, "PartialPush",
                                "A push that sends final elements of its gradient while others are computed.")
      .def(
          "ready",
          [](PythonPartialPush& push, nb::handle begin, nb::handle count) {
            push.ready(elements(begin, "begin"), elements(count, "count"));
          },
          "begin"_a, "count"_a, nb::sig("def ready(self, begin: int, count: int) -> None"),
          "Marks elements [begin, begin + count) as final, each once, including padding.")
      .def("finish", &PythonPartialPush::finish, nb::keep_alive<0, 1>(),
           "Ends the push, once all elements are final, and returns the call.")
      .def("__repr__", [](const PythonPartialPush& push) {
        return fmt::format("<psd.PartialPush, {}>", push.finished() ? "finished" : "not finished");
      });
}

void bindFragments(nb::module_& m) {
  nb::class_<PythonFragments>(m, "FragmentExchange", "A trainer's exchanges under a policy of local steps.")
      .def("begin", &PythonFragments::begin, "Fills the parameters, before the first step.")
      .def("stepped", &PythonFragments::stepped, "samples"_a,
           "Counts a step of `samples` examples; returns whether exchange() is due.")
      .def_prop_ro("due", &PythonFragments::due, "Whether exchange() is due.")
      .def("exchange", &PythonFragments::exchange, "last"_a,
           "Pushes the difference of the steps, and continues from the result; `last`: no step follows.")
      .def("settle", &PythonFragments::settle, "Waits for the exchanges in progress.")
      .def_prop_ro(
          "progress", [](PythonFragments& own) { return own.progress().steps; }, "Steps of the run.")
      .def_prop_ro(
          "rounds", [](PythonFragments& own) { return own.progress().rounds; }, "Rounds of the run.")
      .def_prop_ro(
          "versions", [](PythonFragments& own) { return own.progress().versions; },
          "The version of each shard that the parameters come from.")
      .def_prop_ro(
          "last_push", [](PythonFragments& own) { return own.progress().lastPush; },
          "The outcome of the last push that was answered.")
      .def_prop_ro(
          "late", [](PythonFragments& own) { return own.progress().late; },
          "How often a difference was discarded.")
      .def("__repr__", [](PythonFragments& own) {
        const auto progress = own.progress();
        return fmt::format("<psd.FragmentExchange, {} steps, {} rounds, {} late>", progress.steps,
                           progress.rounds, progress.late);
      });
}

/// Hyperparameters of a push, shared with pushes in progress. Immutable.
struct PythonHyperparameters {
  /// Throws unless the sets have equal sizes and the runs name them; −1 − set: no step.
  PythonHyperparameters(const std::vector<std::vector<double>>& sets,
                        const std::vector<std::pair<uint64_t, int64_t>>& runs,
                        const std::vector<int64_t>& tables) {
    auto made = std::make_shared<ModelHyperparameters>();
    for (const std::vector<double>& set : sets) {
      if (set.empty() || set.size() != sets.front().size()) {
        check(Status(ErrorCode::invalidArgument, "sets of hyperparameters have equal sizes, at least 1"));
      }
    }
    made->elements.sets = made->tables.sets = sets;
    const auto runTo = [&](uint64_t end, int64_t set) {
      const bool steps = set >= 0;
      const int64_t index = steps ? set : -1 - set;
      if (index >= static_cast<int64_t>(sets.size())) {
        check(
            Status(ErrorCode::invalidArgument, fmt::format("there is no set {} of hyperparameters", index)));
      }
      return Hyperparameters::Run{end, static_cast<uint32_t>(index), steps};
    };
    for (const auto& [end, set] : runs) made->elements.append(runTo(end, set));
    for (size_t i = 0; i < tables.size(); i++) made->tables.append(runTo(i + 1, tables[i]));
    made->tables = made->tables.part(0, tables.size());
    shared = std::move(made);
  }
  std::shared_ptr<const ModelHyperparameters> shared;
};

PushArguments pushOf(nb::handle gradient, uint32_t samples, std::vector<uint64_t> basis,
                     const PythonRows* rows, uint32_t localSteps,
                     const PythonHyperparameters* hyperparameters) {
  PushArguments arguments{gradient, {samples, localSteps}, std::move(basis), rows};
  if (hyperparameters) arguments.behind.hyperparameters = hyperparameters->shared;
  return arguments;
}

PushInfo push(PythonClient& client, nb::handle gradient, uint32_t samples, std::vector<uint64_t> basis,
              const PythonRows* rows, uint32_t localSteps, const PythonHyperparameters* hyperparameters) {
  return client.push(pushOf(gradient, samples, std::move(basis), rows, localSteps, hyperparameters));
}

PythonPending<PushInfo> beginPush(PythonClient& client, nb::handle gradient, uint32_t samples,
                                  std::vector<uint64_t> basis, const PythonRows* rows, uint32_t localSteps,
                                  const PythonHyperparameters* hyperparameters) {
  return client.beginPush(pushOf(gradient, samples, std::move(basis), rows, localSteps, hyperparameters));
}

PythonPartialPush partialPush(PythonClient& client, nb::handle gradient, uint32_t samples,
                              std::vector<uint64_t> basis, const PythonRows* rows,
                              const PythonHyperparameters* hyperparameters) {
  return client.partialPush(pushOf(gradient, samples, std::move(basis), rows, 0, hyperparameters));
}

void construct(PythonClient* self, std::vector<std::string> servers, double connectTimeout,
               double retryTimeout, const std::string& transport, uint32_t connections, uint32_t window,
               uint64_t chunk, std::string codec, std::string pullCodec, bool acceptLostRows,
               std::string optimizer, nb::object onEvent, std::optional<std::string> token,
               CredentialFlags files, int cudaDevice) {
  ClientOptions options = optionsOf({std::move(servers), connectTimeout, retryTimeout, std::move(onEvent),
                                     std::move(token), std::move(files)});
  options.optimizer = std::move(optimizer);
  options.transport = transportOf(transport);
  options.connections = connections;
  options.window = window;
  if (chunk != 0) options.chunkBytes = options.deviceChunkBytes = options.ringChunkBytes = chunk;
  options.codec = std::move(codec);
  options.pullCodec = std::move(pullCodec);
  options.acceptLostRows = acceptLostRows;
  options.cudaDevice = cudaDevice;
  new (self) PythonClient(options);
}

void bindCredentials(nb::module_& m) {
  nb::class_<CredentialFlags>(
      m, "CredentialFiles",
      "Files of the client's token and certificate, and of the authorities that it trusts; None: not given.")
      .def(
          "__init__",
          [](CredentialFlags* self, std::optional<std::string> tokenFile, std::optional<std::string> tlsCa,
             std::optional<std::string> tlsCertificate, std::optional<std::string> tlsKey) {
            new (self) CredentialFlags{std::move(tokenFile), std::move(tlsCa), std::move(tlsCertificate),
                                       std::move(tlsKey)};
          },
          "token_file"_a.none(), "tls_ca"_a.none(), "tls_cert"_a.none(), "tls_key"_a.none());
}

void bindClient(nb::module_& m) {
  nb::class_<PythonHyperparameters>(m, "Hyperparameters",
                                    "Hyperparameters of an optimizer step, by runs of elements.")
      .def(nb::init<const std::vector<std::vector<double>>&, const std::vector<std::pair<uint64_t, int64_t>>&,
                    const std::vector<int64_t>&>(),
           "sets"_a, "runs"_a, "tables"_a);
  nb::class_<PythonClient>(m, "Client", nb::is_weak_referenceable())
      .def("__init__", &construct, "servers"_a, "connect_timeout"_a, "retry_timeout"_a, "transport"_a,
           "connections"_a, "window"_a, "chunk"_a, "codec"_a, "pull_codec"_a, "accept_lost_rows"_a,
           "optimizer"_a, "on_event"_a.none(), "token"_a.none(), "files"_a, "cuda_device"_a)
      .def(
          "join",
          [](PythonClient& client, const ModelSpec& model, nb::handle initial, uint32_t rank, bool anyRank,
             uint32_t worldSize) {
            return client.join({Rank{rank}, worldSize, anyRank}, model, initial);
          },
          "model"_a, "initial"_a.none(), "rank"_a, "any_rank"_a, "world_size"_a)
      .def("observe", &PythonClient::observe, "model"_a)
      .def("pull", &PythonClient::pull, "into"_a.none(), "rows"_a.none())
      .def("begin_pull", &PythonClient::beginPull, "into"_a.none(), "rows"_a.none(), nb::keep_alive<0, 1>())
      .def("push", &push, "gradient"_a.none(), "samples"_a, "basis"_a, "rows"_a.none(), "local_steps"_a,
           "hyperparameters"_a.none())
      .def("begin_push", &beginPush, "gradient"_a.none(), "samples"_a, "basis"_a, "rows"_a.none(),
           "local_steps"_a, "hyperparameters"_a.none(), nb::keep_alive<0, 1>())
      .def(
          "round_due",
          [](PythonClient& client, uint64_t version) { return client.roundDue(Version{version}); },
          "version"_a, nb::keep_alive<0, 1>())
      .def("fragments", &PythonClient::fragments, "parameters"_a, "spare"_a, nb::keep_alive<0, 1>())
      .def("partial_push", &partialPush, "gradient"_a.none(), "samples"_a, "basis"_a, "rows"_a.none(),
           "hyperparameters"_a.none(), nb::keep_alive<0, 1>())
      .def("rows", &PythonClient::rows)
      .def("fetch_state", &PythonClient::fetchState,
           nb::sig("def fetch_state(self) -> tuple[list[int], list[int], dict[str, "
                   "numpy.typing.NDArray[numpy.float32]]]"))
      .def("restore_state", &PythonClient::restoreState, "steps"_a, "arrays"_a)
      .def(
          "take_samples",
          [](PythonClient& client, uint64_t step, uint32_t count, uint64_t samples, uint64_t epochs,
             uint64_t firstEpoch, bool wait) {
            return client.takeSamples({.step = Step{step},
                                       .count = count,
                                       .samples = samples,
                                       .epochs = epochs,
                                       .firstEpoch = firstEpoch,
                                       .wait = wait});
          },
          "step"_a, "count"_a, "samples"_a, "epochs"_a, "first_epoch"_a, "wait"_a)
      .def("report", &PythonClient::report, "step"_a, "values"_a)
      .def(
          "ping",
          [](PythonClient& client, uint64_t calls, uint32_t outstanding) {
            return client.ping(calls, outstanding).seconds;
          },
          "calls"_a, "outstanding"_a)
      .def("set_buffers", &PythonClient::setBuffers, "file"_a)
      .def("buffers", &PythonClient::buffers)
      .def("status", &PythonClient::status)
      .def("set", &PythonClient::set, "assignment"_a)
      .def("checkpoint", &PythonClient::checkpoint)
      .def("leave", &PythonClient::leave)
      .def("interrupt", &PythonClient::interrupt)
      .def("close", &PythonClient::close)
      .def_prop_ro("step", &PythonClient::step)
      .def_prop_ro("bytes_pulled", &PythonClient::bytesPulled)
      .def_prop_ro("bytes_pushed", &PythonClient::bytesPushed);
}

void bindCategories(nb::module_& m) {
  m.def(
      "hash_category",
      [](uint32_t field, nb::bytes text) {
        return categoryId(field, {text.c_str(), text.size()});
      },
      "field"_a, "text"_a);
}

void bindMemory(nb::module_& m) {
  m.def(
      "keep_freed_memory", &keepFreedMemory,
      "Makes this process keep up to 1 GiB of freed memory, in blocks of up to 32 MiB each. On the CPU each "
      "step "
      "allocates and frees the same tens of MB for activations and gradients; by default glibc returns them "
      "to "
      "the system, which costs about 2,500 page faults in each step of mnist_cnn. Affects the whole process. "
      "Returns False if the C library does not support it.");
}

}  // namespace
}  // namespace psd::python

NB_MODULE(_psd, m) {
  nb::set_leak_warnings(false);  // objects that outlive the interpreter are closed by then
  m.attr("version") = PSD_VERSION;
  psd::python::bindModel(m);
  psd::python::bindJoinInfo(m);
  psd::python::bindAnswers(m);
  psd::python::bindRows(m);
  psd::python::bindCalls(m);
  psd::python::bindFragments(m);
  psd::python::bindCredentials(m);
  psd::python::bindClient(m);
  psd::python::bindVersions(m);
  psd::python::bindPublisher(m);
  psd::python::bindCategories(m);
  psd::python::bindMemory(m);
}
