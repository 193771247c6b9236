#pragma once

#include "schema/psd.capnp.h"
#include "server/policy/served_model.h"
#include "server/rpc/connection.h"

namespace psd {

/// What writeAccess() takes at most in a message, and wire::writeModel().
uint64_t accessBytes(const ServedModel& model);
uint64_t modelBytes(const ModelSpec& model);

/// Tells a peer what it must know before it pulls or pushes, and what shared memory it may use, or why none.
void writeAccess(const ServedModel& model, Connection& connection, schema::ModelAccess::Builder out);

}  // namespace psd
