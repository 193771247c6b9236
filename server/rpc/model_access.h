#pragma once

#include "schema/psd.capnp.h"
#include "server/policy/served_model.h"
#include "server/rpc/connection.h"

namespace psd {

/// Upper bounds on the message size of writeAccess() and wire::writeModel().
uint64_t accessBytes(const ServedModel& model);
uint64_t modelBytes(const ModelSpec& model);

/// Writes what a peer needs to know before it pulls or pushes, and the shared memory it may use or why it may
/// not.
void writeAccess(const ServedModel& model, Connection& connection, schema::ModelAccess::Builder out);

}  // namespace psd
