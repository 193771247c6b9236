#include "common/wire/convert.h"

#include <bit>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd::wire {
namespace {

// Far above real models; bounds what a hostile message can make the receiver allocate.
constexpr uint32_t kTensorsMax = 1u << 17;
constexpr uint32_t kRankMax = 64;
constexpr uint32_t kHyperparametersMax = kTensorsMax;
// A human-readable line; more would only fill the peer's log.
constexpr size_t kErrorBytesMax = 4096;

static_assert(static_cast<uint16_t>(schema::ErrorCode::STALE) == static_cast<uint16_t>(ErrorCode::stale),
              "schema::ErrorCode lists the codes of psd::ErrorCode up to stale, in the same order");

static_assert(static_cast<uint16_t>(schema::DType::F16) == static_cast<uint16_t>(DType::f16),
              "schema::DType lists the dtypes of psd::DType up to f16, in the same order");

void writeTensors(const std::vector<TensorSpec>& tensors, capnp::List<schema::TensorSpec>::Builder out) {
  for (kj::uint i = 0; i < out.size(); i++) {
    const TensorSpec& tensor = tensors[i];
    out[i].setName(tensor.name.c_str());
    out[i].setDtype(static_cast<schema::DType>(tensor.dtype));
    auto shape = out[i].initShape(static_cast<kj::uint>(tensor.shape.size()));
    for (kj::uint d = 0; d < shape.size(); d++) shape.set(d, tensor.shape[d]);
  }
}

Status readTensors(capnp::List<schema::TensorSpec>::Reader in, std::vector<TensorSpec>& out) {
  const auto bad = [](std::string why) { return Status(ErrorCode::invalidArgument, std::move(why)); };
  if (in.size() > kTensorsMax) {
    return bad(fmt::format("the model has {} tensors; the limit is {}", in.size(), kTensorsMax));
  }
  out.reserve(in.size());
  for (auto tensor : in) {
    auto shape = tensor.getShape();
    TensorSpec spec{std::string(textIn(tensor.getName())), DType::f32, {}};
    if (shape.size() > kRankMax) {
      return bad("tensor '" + printable(spec.name) + "' has more than 64 dimensions");
    }
    if (tensor.getDtype() > schema::DType::F16) {
      return bad("tensor '" + printable(spec.name) +
                 "' has a dtype unknown to this version; a tensor is f32, bf16 or f16");
    }
    spec.dtype = static_cast<DType>(tensor.getDtype());
    for (uint64_t size : shape) spec.shape.push_back(size);
    out.push_back(std::move(spec));
  }
  return {};
}

Status readTables(capnp::List<schema::TableSpec>::Reader in, std::vector<TableSpec>& out) {
  if (in.size() > kTablesMax) {
    return {ErrorCode::invalidArgument,
            fmt::format("the model has {} tables; the limit is {}", in.size(), kTablesMax)};
  }
  for (auto table : in) {
    auto initial = table.getInitial();
    TableSpec spec{std::string(textIn(table.getName())), table.getDim(), {}};
    if (initial.getKind() > schema::RowInitial::Kind::NORMAL) {
      return {ErrorCode::invalidArgument,
              fmt::format("table '{}' has initial values of a kind unknown to this version",
                          printable(spec.name))};
    }
    spec.initial.kind = static_cast<RowInitial::Kind>(initial.getKind());
    spec.initial.scale = initial.getScale();
    spec.initial.seed = initial.getSeed();
    out.push_back(std::move(spec));
  }
  return {};
}

static_assert(static_cast<uint16_t>(schema::RowInitial::Kind::NORMAL) ==
                  static_cast<uint16_t>(RowInitial::Kind::normal),
              "schema::RowInitial::Kind lists the kinds of psd::RowInitial, in the same order");

}  // namespace

void writeError(const Error& error, schema::Error::Builder out) {
  out.setCode(static_cast<schema::ErrorCode>(error.code));
  out.setMessage(oneLine(error.message, kErrorBytesMax).c_str());
}

Error readError(schema::Error::Reader in) {
  auto code = static_cast<ErrorCode>(in.getCode());
  // Sent by a newer peer, or never valid from a peer.
  if (code > ErrorCode::stale || code == ErrorCode::interrupted) code = ErrorCode::internal;
  return {code, std::string(textIn(in.getMessage()))};
}

void writeStatus(const Status& status, schema::Acknowledgement::Builder out) {
  if (status.ok()) {
    out.setOk();
  } else {
    writeError(status.error(), out.initError());
  }
}

Status readStatus(schema::Acknowledgement::Reader in) {
  return in.isError() ? Status(readError(in.getError())) : Status();
}

void writeModel(const ModelSpec& model, schema::ModelSpec::Builder out) {
  out.setName(model.name.c_str());
  out.setSignature(model.signature());
  out.setPartition(model.partition.index);
  out.setPartitions(model.partition.of);
  writeTensors(model.tensors, out.initTensors(static_cast<kj::uint>(model.tensors.size())));
  if (model.whole) writeTensors(*model.whole, out.initWhole(static_cast<kj::uint>(model.whole->size())));
  auto tables = out.initTables(static_cast<kj::uint>(model.tables.size()));
  for (kj::uint i = 0; i < tables.size(); i++) {
    const TableSpec& table = model.tables[i];
    tables[i].setName(table.name.c_str());
    tables[i].setDim(table.dim);
    auto initial = tables[i].initInitial();
    initial.setKind(static_cast<schema::RowInitial::Kind>(table.initial.kind));
    initial.setScale(table.initial.scale);
    initial.setSeed(table.initial.seed);
  }
}

Result<ModelSpec> readModel(schema::ModelSpec::Reader in) {
  auto bad = [](const std::string& why) { return Error{ErrorCode::invalidArgument, why}; };
  ModelSpec model;
  model.name = printable(textIn(in.getName()));
  if (in.getPartitions() != 0) model.partition = {in.getPartition(), in.getPartitions()};
  PSD_RETURN_IF_ERROR(readTensors(in.getTensors(), model.tensors));
  if (in.getWhole().size() > 0) {
    std::vector<TensorSpec> whole;
    PSD_RETURN_IF_ERROR(readTensors(in.getWhole(), whole));
    model.whole = std::make_shared<const std::vector<TensorSpec>>(std::move(whole));
  }
  PSD_RETURN_IF_ERROR(readTables(in.getTables(), model.tables));
  if (model.empty()) return model;
  PSD_RETURN_IF_ERROR(validateModel(model));
  if (model.signature() != in.getSignature())
    return bad("the model's signature does not match its tensors and tables");
  return model;
}

void writePlan(const ShardPlan& plan, capnp::List<schema::ShardRange>::Builder out) {
  for (kj::uint i = 0; i < out.size(); i++) {
    out[i].setBegin(plan.shards[i].begin);
    out[i].setCount(plan.shards[i].count);
  }
}

Result<ShardPlan> readPlan(capnp::List<schema::ShardRange>::Reader in) {
  ShardPlan plan;
  for (kj::uint i = 0; i < in.size(); i++) {
    plan.shards.push_back({ShardId{i}, in[i].getBegin(), in[i].getCount()});
  }
  PSD_RETURN_IF_ERROR(plan.validate());
  return plan;
}

Result<std::span<const float>> floatsIn(capnp::Data::Reader data) {
  if (data.size() % sizeof(float) != 0) {
    return Error{ErrorCode::badSlice,
                 "a slice of " + std::to_string(data.size()) + " bytes does not consist of float32 values"};
  }
  return std::span(reinterpret_cast<const float*>(data.begin()), data.size() / sizeof(float));
}

Result<OwnedRowRuns> rowsIn(capnp::List<schema::RowRun>::Reader runs, capnp::Data::Reader ids) {
  static_assert(std::endian::native == std::endian::little, "ids are little endian");
  if (ids.size() % sizeof(uint64_t) != 0) {
    return Error{ErrorCode::badSlice, fmt::format("{} bytes do not consist of 8-byte ids", ids.size())};
  }
  OwnedRowRuns rows;
  rows.ids = {reinterpret_cast<const uint64_t*>(ids.begin()), ids.size() / sizeof(uint64_t)};
  if (runs.size() > rows.ids.size()) {
    return Error{ErrorCode::badSlice, fmt::format("{} runs of {} ids", runs.size(), rows.ids.size())};
  }
  rows.runs.reserve(runs.size());
  for (const auto run : runs) rows.runs.push_back({run.getTable(), run.getCount()});
  return rows;
}

void writeRuns(std::span<const RowRun> runs, capnp::List<schema::RowRun>::Builder out) {
  for (kj::uint i = 0; i < out.size(); i++) {
    out[i].setTable(runs[i].table);
    out[i].setCount(runs[i].count);
  }
}

Result<std::shared_ptr<const Hyperparameters>> readHyperparameters(schema::Hyperparameters::Reader in) {
  const auto values = in.getValues();
  const auto runs = in.getRuns();
  const uint32_t size = in.getSetSize();
  // A list of structs without bytes may claim any length.
  if (values.size() > kHyperparametersMax || runs.size() > kHyperparametersMax) {
    return Error{ErrorCode::badSlice,
                 fmt::format("hyperparameters: at most {} values and runs", kHyperparametersMax)};
  }
  if (size == 0 ? values.size() != 0 : values.size() % size != 0) {
    return Error{ErrorCode::badSlice,
                 fmt::format("hyperparameters: {} values are not sets of {}", values.size(), size)};
  }
  auto read = std::make_shared<Hyperparameters>();
  for (kj::uint at = 0; at < values.size(); at += size) {
    std::vector<double>& set = read->sets.emplace_back();
    for (kj::uint i = 0; i < size; i++) set.push_back(values[at + i]);
  }
  for (const auto run : runs) {
    if (run.getSet() >= read->sets.size()) {
      return Error{ErrorCode::badSlice, fmt::format("hyperparameters: a run has set {}, and there are {}",
                                                    run.getSet(), read->sets.size())};
    }
    read->runs.push_back({run.getEnd(), run.getSet(), run.getSteps()});
  }
  return std::shared_ptr<const Hyperparameters>(std::move(read));
}

void writeHyperparameters(const Hyperparameters& hyperparameters, schema::Hyperparameters::Builder out) {
  const auto sets = static_cast<kj::uint>(hyperparameters.sets.size());
  const auto size = static_cast<kj::uint>(sets == 0 ? 0 : hyperparameters.sets.front().size());
  out.setSetSize(size);
  auto values = out.initValues(sets * size);
  for (kj::uint i = 0; i < values.size(); i++) values.set(i, hyperparameters.sets[i / size][i % size]);
  auto runs = out.initRuns(static_cast<kj::uint>(hyperparameters.runs.size()));
  for (kj::uint i = 0; i < runs.size(); i++) {
    runs[i].setEnd(hyperparameters.runs[i].end);
    runs[i].setSet(hyperparameters.runs[i].set);
    runs[i].setSteps(hyperparameters.runs[i].steps);
  }
}

uint64_t wordsOf(const Hyperparameters& hyperparameters) {
  uint64_t values = 0;
  for (const std::vector<double>& set : hyperparameters.sets) values += set.size();
  return 3 + values + 1 + 2 * hyperparameters.runs.size();
}

}  // namespace psd::wire
