#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "common/codec/codec.h"
#include "server/service/control_loop.h"
#include "server/service/trainer_service.h"

namespace psd {

/// A trainer that has joined.
struct JoinedTrainer {
  SessionGrant grant;
  std::shared_ptr<ServedModel> model;
  std::unique_ptr<TrainerService> service;
};

/// Admits trainers and readers, independent of protocol. Belongs to one event loop, as do the services that
/// it creates.
class JoinService {
 public:
  /// A request to join. A value type.
  struct Request {
    static constexpr size_t kHeldMax = 1024;  ///< far more steps than samples are assigned for at a time

    Candidate candidate;            ///< `codec` and `pullCodec`: its proposals; empty: the daemon's choice
    std::vector<HeldSamples> held;  ///< see Coordinator::join()
    ModelSpec model;
  };

  /// `control` outlives it.
  JoinService(std::shared_ptr<EventLoop> loop, ControlLoop& control)
      : loop_(std::move(loop)), control_(control) {}

  /// May wait until the model is created. A caller that rejects a request before join() counts it with
  /// refused().
  kj::Promise<Result<JoinedTrainer>> join(Request request);
  /// Adds a connection of a joined trainer.
  kj::Promise<Result<JoinedTrainer>> attach(const AttachRequest& request);
  /// The codec of a reader's pulls, as it requests (a peer's text; empty: float32); null for float32.
  Result<std::shared_ptr<const Codec>> agreeWithReader(std::string_view pullCodec) const;
  /// The model for a reader; an empty `model` matches any.
  kj::Promise<Result<std::shared_ptr<ServedModel>>> observe(ModelSpec model);
  /// Counts a rejected trainer.
  Error refused(Error error);

 private:
  /// Negotiates the codecs of the candidate's pushes and pulls.
  Status agree(Candidate& candidate) const;
  /// Whether this machine's parameters may be averaged with those of other machines.
  Status mayBridge(const ModelSpec& model) const;

  const std::shared_ptr<EventLoop> loop_;
  ControlLoop& control_;
};

}  // namespace psd
