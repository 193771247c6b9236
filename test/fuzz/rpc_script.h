#pragma once

#include <string>
#include <vector>

#include <capnp/message.h>
#include <capnp/rpc.capnp.h>
#include <capnp/schema.h>
#include <capnp/serialize.h>

#include "common/wire/convert.h"

namespace psd::fuzz {

/// A peer's messages to the daemon, as bytes, written without waiting for any answer: each call is addressed
/// to the promised result of an earlier one. Owned by one thread.
class RpcScript {
 public:
  /// Requests the daemon's bootstrap capability. Returns the number of the question, for calls on its answer.
  uint32_t bootstrap() {
    capnp::MallocMessageBuilder message;
    message.initRoot<capnp::rpc::Message>().initBootstrap().setQuestionId(questions_);
    append(message);
    return questions_++;
  }

  /// Calls a method of Interface on the answer to `question`: on the answer itself, or on its field `pointer`
  /// if that is not negative. `fill(params)` writes the arguments.
  template <class Interface, class Params, class Fill>
  uint32_t call(uint32_t question, int pointer, const char* method, Fill fill) {
    capnp::MallocMessageBuilder message;
    auto call = message.initRoot<capnp::rpc::Message>().initCall();
    call.setQuestionId(questions_);
    auto target = call.initTarget().initPromisedAnswer();
    target.setQuestionId(question);
    if (pointer >= 0) target.initTransform(1)[0].setGetPointerField(static_cast<uint16_t>(pointer));
    const auto schema = capnp::Schema::from<Interface>().getMethodByName(method);
    call.setInterfaceId(capnp::typeId<Interface>());
    call.setMethodId(schema.getOrdinal());
    fill(call.initParams().getContent().template initAs<Params>());
    append(message);
    return questions_++;
  }

  /// All of it, in Cap'n Proto's framing.
  const std::string& bytes() const { return bytes_; }

 private:
  void append(capnp::MessageBuilder& message) {
    const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
    const auto chars = words.asBytes().asChars();
    bytes_.append(chars.begin(), chars.size());
  }

  uint32_t questions_ = 0;
  std::string bytes_;
};

}  // namespace psd::fuzz
