#include "trainer/client/calls.h"

#include <string>

#include "trainer/client/notices.h"

namespace psd {
namespace {

constexpr char kWaitHint[] = "; psd status shows for which trainers";

}  // namespace

PullCall::PullCall(CallHost& client, const Links& links, ArenaValues destination, bool onDevice,
                   std::shared_ptr<RowBatch> rows, std::optional<uint32_t> fragment)
    : client_(client),
      links_(links),
      destination_(destination),
      onDevice_(onDevice),
      rows_(std::move(rows)),
      fragment_(fragment) {
  send();
}

void PullCall::send() {
  connection_ = links_.number();
  copy_ = nullptr;
  if (rows_) {
    rows_->dropLostMemory();
    const auto pull = [rows = rows_](Channel& channel) { return channel.pullRows(rows); };
    if (destination_.empty()) {  // rows only
      values_ = links_.startOnAll<PullInfo>(pull);
      return;
    }
    rowValues_ = links_.startOnAll<PullInfo>(pull);
  }
  if (const auto& shared = links_.sharedModel(); shared && shared->readable() && !onDevice_ && !fragment_) {
    copy_ = std::make_shared<SharedCopy>(shared, destination_.floats());
    values_ =
        links_.startOnAll<PullInfo>([copy = copy_](Channel& channel) { return channel.pullShared(copy); });
    return;
  }
  values_ = links_.startOnAll<PullInfo>(
      [destination = destination_, onDevice = onDevice_, fragment = fragment_](Channel& channel) {
        return channel.pull(destination, onDevice, fragment);
      });
}

Result<PullInfo> PullCall::answers() {
  Result<PullInfo> values = values_.get();
  if (!rowValues_.started()) return values;
  const Result<PullInfo> rows = rowValues_.get();  // waits for all before an error is returned
  if (!values.ok()) return values;
  PSD_RETURN_IF_ERROR(rows);
  values->add(*rows);
  return values;
}

Result<PullInfo> PullCall::wait() {
  ClientLock& lock = client_.lock();
  for (;;) {
    // This thread helps with the copy. The I/O thread detects the end of the connection.
    if (copy_) {
      lock.outside([this] {
        while (copy_->copyPiece()) continue;
      });
    }
    const auto ready = [this](auto time) {
      return values_.readyWithin(time) && rowValues_.readyWithin(time);
    };
    const auto report = [this] { client_.reportWait(std::string("parameters") + kWaitHint); };
    if (!lock.await(ready, report)) return waitEndedError();
    Result<PullInfo> values = answers();
    if (values.ok()) {
      client_.count(*values);
      return values;
    }
    // The daemon cancels a pull when this process was suspended during it; the pull is then restarted.
    const bool givenUp = values.error().code == ErrorCode::deadlineExceeded && !client_.ended();
    PSD_RETURN_IF_ERROR(givenUp ? lock.awaitTurn() : client_.recover(connection_, values.error()));
    send();
  }
}

PushCall::PushCall(CallHost& client, const Links& links, PushRequest request)
    : client_(client),
      links_(links),
      request_(std::move(request)),
      slices_(links.slices()),
      coverage_(slices_->slices) {}

void PushCall::send() {
  connection_ = links_.number();
  request_.dropped = std::make_shared<std::vector<ShardId>>();
  answer_ = links_.startOnAll<PushInfo>(
      [request = request_](Channel& channel) { return channel.beginPush(request); });
  slices_ = links_.slices();
  coverage_ = Coverage(slices_->slices);
  std::vector<size_t> complete;
  for (const auto& [begin, end] : reported_.ends()) {
    const std::vector<size_t> more = coverage_.add(begin, end - begin);
    complete.insert(complete.end(), more.begin(), more.end());
  }
  sendReady(complete);
  if (rowsReady_) sendRows();
}

void PushCall::rowsReady() {
  rowsReady_ = true;
  if (sent()) return sendRows();
  client_.sendDue();
}

void PushCall::sendRows() const {
  for (uint32_t link = 0; link < slices_->links; link++) {
    links_.at(link).post([step = request_.step, rowsOnly = request_.gradient.empty()](Channel& channel) {
      channel.rowsReady(step, rowsOnly);
    });
  }
}

void PushCall::ready(uint64_t begin, uint64_t count) {
  if (!reported_.add(begin, count)) {
    repeated_ = true;
    return;
  }
  const std::vector<size_t> complete = coverage_.add(begin, count);
  if (sent()) return sendReady(complete);
  client_.sendDue();
}

void PushCall::sendReady(const std::vector<size_t>& slices) const {
  std::vector<std::vector<size_t>> shares(slices_->links);
  for (size_t slice : slices) {
    const DividedSlices::Place& place = slices_->places[slice];
    shares[place.link].push_back(place.index);
  }
  for (uint32_t link = 0; link < shares.size(); link++) {
    if (shares[link].empty()) continue;
    links_.at(link).post(
        [step = request_.step, fragment = request_.fragment,
         share = std::move(shares[link])](Channel& channel) { channel.pushReady(step, share, fragment); });
  }
}

void PushCall::giveUp() {
  givenUp_ = true;  // not to be resent: the gradient may be freed
  if (!sent()) return;
  for (uint32_t link = 0; link < slices_->links; link++) {
    links_.at(link).post([step = request_.step](Channel& channel) { channel.giveUpPush(step); });
  }
  client_.lock().outside([answer = answer_] { (void)answer.get(); });
}

bool PushCall::done() const {
  if (client_.lock().isExclusive()) return false;  // a thread that reconnects resends
  client_.sendDue();
  return sent() && answer_.ready();
}

bool PushCall::settled() const {
  if (!sent()) return givenUp_;
  if (!answer_.ready()) return false;
  const Result<PushInfo> answer = answer_.get();
  return answer.ok() || givenUp_ || !client_.mayRecover(answer.error());
}

void PushCall::conclude() const {
  if (!sent() || slices_->links == 1 || request_.gradient.empty()) return;
  for (uint32_t link = 0; link < slices_->links; link++) {
    links_.at(link).post([step = request_.step, dropped = request_.dropped](Channel& channel) {
      channel.concludePush(step, *dropped);
    });
  }
}

bool PushCall::await(const Answers<PushInfo>& answer) {
  return client_.lock().await([&](auto time) { return answer.readyWithin(time); },
                              [this] {
                                client_.reportWait("the answer to the push of step " +
                                                   std::to_string(request_.step.value) + kWaitHint);
                              });
}

Status PushCall::awaitAndRecover() {
  const Answers<PushInfo> sent = answer_;
  const uint64_t connection = connection_;
  if (!await(sent)) return waitEndedError();
  const Result<PushInfo> answer = sent.get();
  // The error is returned to its waiter.
  if (!answer.ok()) (void)client_.recover(connection, answer.error());
  return client_.lock().awaitTurn();
}

Result<PushInfo> PushCall::wait() {
  for (;;) {
    client_.sendDue();
    if (!sent()) {
      PSD_RETURN_IF_ERROR(client_.awaitOldest());  // sent by sendDue()
      continue;
    }
    const Answers<PushInfo> sent = answer_;  // another thread may recover and resend meanwhile
    const uint64_t connection = connection_;
    if (!await(sent)) return waitEndedError();
    Result<PushInfo> answer = sent.get();
    if (answer.ok()) {
      client_.count(*answer, request_.rows && request_.rows->rowCount() > 0);
      return answer;
    }
    // Also resends this push, with the others.
    PSD_RETURN_IF_ERROR(client_.recover(connection, answer.error()));
  }
}

}  // namespace psd
