#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/service/control_loop.h"
#include "server/service/trainer_service.h"

namespace psd {

/// A trainer that has joined.
struct JoinedTrainer {
  SessionGrant grant;
  std::shared_ptr<ServedModel> model;
  std::unique_ptr<TrainerService> service;
};

/// Lets trainers and readers in, in plain values, whatever protocol they speak. Belongs to one event loop,
/// which the services that it makes belong to as well.
class JoinService {
 public:
  /// How a trainer asks to join. A value type.
  struct Request {
    static constexpr size_t kHeldMax = 1024;  ///< far more steps than samples are assigned for at a time

    Candidate candidate;            ///< `codec` and `pullCodec`: what it proposes; empty: as the daemon says
    std::vector<HeldSamples> held;  ///< see Coordinator::join()
    ModelSpec model;
  };

  /// `control` outlives it.
  JoinService(std::shared_ptr<EventLoop> loop, ControlLoop& control)
      : loop_(std::move(loop)), control_(control) {}

  /// May wait for the model to be made. Who refuses a request before it comes here counts it with refused().
  kj::Promise<Result<JoinedTrainer>> join(Request request);
  /// One more connection of a trainer that has joined.
  kj::Promise<Result<JoinedTrainer>> attach(const AttachRequest& request);
  /// The model for a reader; an empty `model` matches any.
  kj::Promise<Result<std::shared_ptr<ServedModel>>> observe(ModelSpec model);
  /// Counts a trainer that is not let in.
  Error refused(Error error);

 private:
  /// Agrees on the codecs that the candidate pushes and pulls with.
  Status agree(Candidate& candidate) const;
  /// Whether this machine's parameters may be averaged with other machines'.
  Status mayBridge(const ModelSpec& model) const;

  const std::shared_ptr<EventLoop> loop_;
  ControlLoop& control_;
};

}  // namespace psd
