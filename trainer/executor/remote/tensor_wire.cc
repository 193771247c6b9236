#include "trainer/executor/remote/tensor_wire.h"

#include <string>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/types/model_spec.h"
#include "common/wire/convert.h"

namespace psd::wire {
namespace {

constexpr size_t kNameBytesMax = 200;
constexpr uint32_t kExtentsMax = 8;
constexpr uint64_t kReadsPerWord = 4;  // limit of reads of each word

static_assert(static_cast<uint16_t>(schema::ElementType::U8) == static_cast<uint16_t>(ElementType::u8),
              "schema::ElementType lists the types of psd::ElementType, in the same order");
static_assert(static_cast<uint16_t>(schema::LossKind::NEXT_TOKEN) + 1 == kLossKinds.size(),
              "schema::LossKind lists the kinds of psd::LossKind, in the same order");

Error wrong(std::string message) { return {ErrorCode::invalidArgument, std::move(message)}; }

template <class List>
Status checkLength(const List& in, const char* what) {
  if (in.size() <= kTensorListMax) return {};
  return wrong(fmt::format("{} {}; expected {} at most", in.size(), what, kTensorListMax));
}

/// Reads name, type and shape, which tensors and columns share.
template <class Reader, class Value>
Status readHead(Reader in, Value& out) {
  const std::string_view name = textIn(in.getName());
  if (name.empty() || name.size() > kNameBytesMax || !isUtf8(name)) {
    return wrong(
        fmt::format("'{}' is not a tensor name; expected 1 to {} bytes", printable(name, 40), kNameBytesMax));
  }
  out.name = name;
  if (in.getType() > schema::ElementType::U8) {
    return wrong(fmt::format("tensor '{}' has a type that is unknown to this version", printable(name)));
  }
  out.type = static_cast<ElementType>(in.getType());
  if (in.getShape().size() > kExtentsMax) {
    return wrong(fmt::format("tensor '{}' has {} extents; expected {} at most", printable(name),
                             in.getShape().size(), kExtentsMax));
  }
  for (const uint64_t extent : in.getShape()) out.shape.push_back(extent);
  return {};
}

template <class Value, class Builder>
void writeHead(const Value& value, Builder out) {
  out.setName(value.name.c_str());
  out.setType(static_cast<schema::ElementType>(value.type));
  auto shape = out.initShape(static_cast<uint32_t>(value.shape.size()));
  for (uint32_t i = 0; i < shape.size(); i++) shape.set(i, value.shape[i]);
}

void writeColumn(const ColumnSpec& column, schema::Column::Builder out) {
  writeHead(column, out);
  out.setBound(column.bound);
}

Status readColumn(schema::Column::Reader in, ColumnSpec& column) {
  PSD_RETURN_IF_ERROR(readHead(in, column));
  column.bound = in.getBound();
  return {};
}

}  // namespace

capnp::ReaderOptions readerOptions(uint64_t messageBytesMax) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kReadsPerWord * messageBytesMax / sizeof(capnp::word);
  return options;
}

void writeTensors(std::span<const NamedTensor> tensors, capnp::List<schema::Tensor>::Builder out) {
  for (uint32_t i = 0; i < out.size(); i++) {
    writeHead(tensors[i], out[i]);
    const auto* bytes = reinterpret_cast<const kj::byte*>(tensors[i].bytes.data());
    out[i].setData({bytes, tensors[i].bytes.size()});
  }
}

Result<std::vector<NamedTensor>> readTensors(capnp::List<schema::Tensor>::Reader in) {
  PSD_RETURN_IF_ERROR(checkLength(in, "tensors"));
  std::vector<NamedTensor> tensors;
  for (const auto each : in) {
    NamedTensor tensor;
    PSD_RETURN_IF_ERROR(readHead(each, tensor));
    const std::span<const std::byte> bytes = bytesIn(each.getData());
    const Result<uint64_t> expected = tensorBytes(tensor.type, tensor.shape);
    if (!expected.ok() || *expected != bytes.size()) {
      return wrong(fmt::format("tensor {} has {} bytes; expected {}", tensor.toString(), bytes.size(),
                               expected.ok() ? std::to_string(*expected) : "fewer elements"));
    }
    tensor.bytes.assign(bytes.begin(), bytes.end());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void writeColumns(std::span<const ColumnSpec> columns, capnp::List<schema::Column>::Builder out) {
  for (uint32_t i = 0; i < out.size(); i++) writeColumn(columns[i], out[i]);
}

Result<std::vector<ColumnSpec>> readColumns(capnp::List<schema::Column>::Reader in) {
  PSD_RETURN_IF_ERROR(checkLength(in, "columns"));
  std::vector<ColumnSpec> columns;
  for (const auto each : in) {
    ColumnSpec column;
    PSD_RETURN_IF_ERROR(readColumn(each, column));
    columns.push_back(std::move(column));
  }
  return columns;
}

void writeLoss(const LossSpec& loss, schema::Loss::Builder out) {
  out.setKind(static_cast<schema::LossKind>(loss.kind));
  out.setOutput(loss.output.c_str());
  writeColumn(loss.target, out.initTarget());
  out.setPenalty(loss.penalty.c_str());
}

Result<std::optional<LossSpec>> readLoss(schema::Loss::Reader in) {
  if (!in.hasTarget()) return std::optional(LossSpec());  // an older executor, which does not send a loss
  if (static_cast<uint16_t>(in.getKind()) >= kLossKinds.size()) return std::optional<LossSpec>();
  LossSpec loss;
  loss.kind = static_cast<LossKind>(in.getKind());
  loss.output = textIn(in.getOutput());
  loss.target = {};
  PSD_RETURN_IF_ERROR(readColumn(in.getTarget(), loss.target));
  loss.penalty = textIn(in.getPenalty());
  return std::optional(std::move(loss));
}

Result<std::vector<uint64_t>> readDaemonNumbers(capnp::List<uint64_t>::Reader in) {
  if (in.size() > kPartitionsMax) {
    return wrong(fmt::format("{} daemon numbers; expected {} at most", in.size(), kPartitionsMax));
  }
  std::vector<uint64_t> numbers;
  for (const uint64_t number : in) numbers.push_back(number);
  return numbers;
}

}  // namespace psd::wire
