#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "schema/psd.capnp.h"

namespace psd::wire {

/// A daemon's file of buffers (Trainer.setBuffers), in slices; empty: it has none, or is too old to have any.
kj::Promise<Result<std::vector<std::byte>>> pullBuffers(schema::Reader::Client reader);

/// Sends a file of buffers in slices of at most `sliceBytes`; resolves with the answer to the last one.
kj::Promise<Status> sendBuffers(schema::Trainer::Client trainer,
                                std::shared_ptr<const std::vector<std::byte>> file, uint64_t sliceBytes);

}  // namespace psd::wire
