#pragma once

// The only place that turns Cap'n Proto readers and builders into psd's types and back. Readers hold a
// peer's bytes: everything is checked, nothing aborts.

#include <span>

#include <capnp/message.h>
#include <capnp/orphan.h>

#include "common/plan/shard_plan.h"
#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "common/types/row_ids.h"
#include "schema/psd.capnp.h"

namespace psd::wire {

inline constexpr uint32_t kProtocolVersion = schema::PROTOCOL_VERSION;

/// Writes an error, its message as one line, cut beyond 4 KiB.
void writeError(const Error& error, schema::Error::Builder out);
Error readError(schema::Error::Reader in);

void writeStatus(const Status& status, schema::Acknowledgement::Builder out);
Status readStatus(schema::Acknowledgement::Reader in);

void writeModel(const ModelSpec& model, schema::ModelSpec::Builder out);
/// Fails (invalidArgument) on a model that validateModel() refuses or whose signature does not match.
/// Neither tensors nor tables give an empty model.
Result<ModelSpec> readModel(schema::ModelSpec::Reader in);

void writePlan(const ShardPlan& plan, capnp::List<schema::ShardRange>::Builder out);
Result<ShardPlan> readPlan(capnp::List<schema::ShardRange>::Reader in);

/// The float32 values in a message, in place. Fails (badSlice) when the length is no multiple of 4.
Result<std::span<const float>> floatsIn(capnp::Data::Reader data);

/// Rows that a call names, the ids in place. Fails (badSlice) where the ids are not 8 bytes each, or there
/// are more runs than ids; nothing else is checked.
Result<OwnedRowRuns> rowsIn(capnp::List<schema::RowRun>::Reader runs, capnp::Data::Reader ids);
void writeRuns(std::span<const RowRun> runs, capnp::List<schema::RowRun>::Builder out);

/// A blob that references `bytes` in place; they must stay readable until the message is written
/// (MessageStream::pin). `bytes` begin 8-aligned, and up to 7 bytes past its end are readable.
template <class Message>
capnp::Orphan<capnp::Data> referenceBytes(Message message, std::span<const std::byte> bytes) {
  return capnp::Orphanage::getForMessageContaining(message).referenceExternalData(
      capnp::Data::Reader(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()));
}

/// A blob that references `values` in place, under the conditions of referenceBytes().
template <class Message>
capnp::Orphan<capnp::Data> referenceFloats(Message message, std::span<const float> values) {
  return referenceBytes(message, std::as_bytes(values));
}

/// The bytes in a message, in place; 8-byte aligned.
inline std::span<const std::byte> bytesIn(capnp::Data::Reader data) {
  return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
}

/// Text in a message, in place.
inline std::string_view textIn(capnp::Text::Reader text) { return {text.begin(), text.size()}; }

}  // namespace psd::wire
