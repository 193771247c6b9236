#include "trainer/client/links.h"

namespace psd {

Links::~Links() {
  // Close all before any is destroyed: a link that fails posts to the others.
  for (const auto& link : links_) link->close();
}

void Links::useFirst() {
  first().look([this](Channel& channel) {
    slices_ = std::make_shared<DividedSlices>(channel.terms().slices, 1);
    shared_ = channel.transports().sharedModel();
  });
}

Result<Link*> Links::make(uint32_t index) {
  while (links_.size() <= index) {
    PSD_ASSIGN_OR_RETURN(auto link, Link::make());
    links_.push_back(std::move(link));
  }
  return links_[index].get();
}

void Links::divide(uint32_t links) {
  slices_ = std::make_shared<DividedSlices>(slices_->slices, links);
  for (uint32_t i = 0; i < links; i++) {
    links_[i]->carry(i, links);
    std::vector<Link*> others;
    for (uint32_t j = 0; j < links; j++) {
      if (j != i) others.push_back(links_[j].get());
    }
    if (others.empty()) continue;
    links_[i]->look([&](Channel& channel) {
      channel.onFailure([others = std::move(others)](const Error& why) {
        for (Link* other : others) other->failAsync(why);
      });
    });
  }
}

void Links::decouple() {
  if (inUse() == 1) return;
  for (uint32_t i = 0; i < inUse(); i++) {
    links_[i]->look([](Channel& channel) { channel.onFailure(nullptr); });
  }
}

void Links::fail(const Error& why) {
  for (const auto& link : links_) link->fail(why);
}

}  // namespace psd
