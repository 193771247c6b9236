#pragma once

// Converts between the values of schema/executor.capnp and psd's types; no other code does. Readers hold
// untrusted bytes of a peer: everything is checked, and errors are returned.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <capnp/message.h>

#include "common/status/status.h"
#include "schema/executor.capnp.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"

namespace psd::wire {

/// The maximum number of tensors, or of columns, in one message.
inline constexpr uint32_t kTensorListMax = 256;

/// Reader options for messages of at most `messageBytesMax` bytes: each word can be read a few times.
capnp::ReaderOptions readerOptions(uint64_t messageBytesMax);

void writeTensors(std::span<const NamedTensor> tensors, capnp::List<schema::Tensor>::Builder out);
/// Copies the values. invalidArgument: a tensor is malformed: a wrong number of bytes, an invalid name or
/// type.
Result<std::vector<NamedTensor>> readTensors(capnp::List<schema::Tensor>::Reader in);

void writeColumns(std::span<const ColumnSpec> columns, capnp::List<schema::Column>::Builder out);
Result<std::vector<ColumnSpec>> readColumns(capnp::List<schema::Column>::Reader in);

void writeLoss(const LossSpec& loss, schema::Loss::Builder out);
/// The default loss if the peer sent none; nothing if its kind is unknown to this version.
Result<std::optional<LossSpec>> readLoss(schema::Loss::Reader in);

/// Identifiers of daemon processes; fails if there are more than can serve one model.
Result<std::vector<uint64_t>> readDaemonNumbers(capnp::List<uint64_t>::Reader in);

}  // namespace psd::wire
