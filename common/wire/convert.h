#pragma once

// The only place that converts between Cap'n Proto readers or builders and psd's types. Readers hold
// untrusted bytes: everything is checked, nothing aborts.

#include <memory>
#include <span>

#include <capnp/message.h>
#include <capnp/orphan.h>

#include "common/plan/shard_plan.h"
#include "common/status/status.h"
#include "common/types/hyperparameters.h"
#include "common/types/model_spec.h"
#include "common/types/row_ids.h"
#include "schema/psd.capnp.h"

namespace psd::wire {

inline constexpr uint32_t kProtocolVersion = schema::PROTOCOL_VERSION;

/// Writes an error with its message as one line, truncated at 4 KiB.
void writeError(const Error& error, schema::Error::Builder out);
Error readError(schema::Error::Reader in);

void writeStatus(const Status& status, schema::Acknowledgement::Builder out);
Status readStatus(schema::Acknowledgement::Reader in);

void writeModel(const ModelSpec& model, schema::ModelSpec::Builder out);
/// Fails (invalidArgument) on a model that validateModel() rejects or whose signature does not match. Without
/// tensors and tables the result is an empty model.
Result<ModelSpec> readModel(schema::ModelSpec::Reader in);

void writePlan(const ShardPlan& plan, capnp::List<schema::ShardRange>::Builder out);
Result<ShardPlan> readPlan(capnp::List<schema::ShardRange>::Reader in);

/// The float32 values in a message, in place. Fails (badSlice) if the length is not a multiple of 4.
Result<std::span<const float>> floatsIn(capnp::Data::Reader data);

/// Rows named in a call, with the ids in place. Fails (badSlice) if the ids are not 8 bytes each, or there
/// are more runs than ids; nothing else is checked.
Result<OwnedRowRuns> rowsIn(capnp::List<schema::RowRun>::Reader runs, capnp::Data::Reader ids);
void writeRuns(std::span<const RowRun> runs, capnp::List<schema::RowRun>::Builder out);

/// The hyperparameters of a push. Fails (badSlice) where a run names no set; nothing else is checked.
Result<std::shared_ptr<const Hyperparameters>> readHyperparameters(schema::Hyperparameters::Reader in);
void writeHyperparameters(const Hyperparameters& hyperparameters, schema::Hyperparameters::Builder out);
/// Words of a message that the hyperparameters take.
uint64_t wordsOf(const Hyperparameters& hyperparameters);

/// A blob that references `bytes` in place; they must stay readable until the message is written
/// (MessageStream::pin). `bytes` is 8-byte aligned, and up to 7 bytes past its end are readable.
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
