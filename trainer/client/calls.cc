#include "trainer/client/calls.h"

namespace psd {

PullCall::PullCall(RpcClient& client, std::span<float> destination)
    : client_(client), destination_(destination) {
  send();
}

void PullCall::send() {
  connection_ = client_.connection_;
  values_ = client_.start<PullInfo>([&client = client_, destination = destination_] {
    return client.channel_->pull(destination, client.options_.window);
  });
}

Result<PullInfo> PullCall::wait() {
  for (;;) {
    const Result<PullInfo>& values = values_.get();
    if (values.ok()) {
      client_.bytesPulled_ += values->bytes;
      return values;
    }
    PSD_RETURN_IF_ERROR(client_.recover(connection_, values.error()));
    send();
  }
}

PushCall::PushCall(RpcClient& client, PushOrder order)
    : client_(client), order_(std::move(order)), coverage_(client.slices_) {
  send();
}

void PushCall::send() {
  connection_ = client_.connection_;
  answer_ = client_.start<PushInfo>([&client = client_, order = order_] {
    return client.channel_->beginPush(order, client.options_.window);
  });
  coverage_ = Coverage(client_.slices_);
  std::vector<size_t> complete;
  for (const auto& [begin, count] : reported_) {
    const std::vector<size_t> more = coverage_.add(begin, count);
    complete.insert(complete.end(), more.begin(), more.end());
  }
  sendReady(std::move(complete));
}

void PushCall::ready(uint64_t begin, uint64_t count) {
  reported_.emplace_back(begin, count);
  sendReady(coverage_.add(begin, count));
}

void PushCall::sendReady(std::vector<size_t> slices) {
  if (slices.empty()) return;
  client_.io_.post([&client = client_, step = order_.step, slices = std::move(slices)] {
    client.channel_->pushReady(step, slices);
  });
}

void PushCall::giveUp() {
  givenUp_ = true;  // not to be sent again: the gradient may go
  client_.io_.post([&client = client_, step = order_.step] { client.channel_->giveUpPush(step); });
  (void)answer_.get();
}

bool PushCall::settled() const {
  if (!isReady(answer_)) return false;
  const Result<PushInfo>& answer = answer_.get();
  return answer.ok() || givenUp_ || !client_.mayRecover(answer.error());
}

Result<PushInfo> PushCall::wait() {
  for (;;) {
    const Result<PushInfo>& answer = answer_.get();
    if (answer.ok()) {
      client_.bytesPushed_ += answer->bytes;
      return answer;
    }
    // Which sends it again, with the others.
    PSD_RETURN_IF_ERROR(client_.recover(connection_, answer.error()));
  }
}

}  // namespace psd
