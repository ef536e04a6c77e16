// Asks storage nodes for the same pages, as of the same llsn, and compares them byte for byte: for
// tests and for operators. Nobody may write meanwhile.
//   strata_compare_pages [--written | --mend] SECRET_FILE ADDRESS ADDRESS...
// --written: of profile remote-disk, where compute writes the pages.
// --mend: of the other ones; asks as compute nodes do, so that each node mends the damage it meets
// on the way. What is compared then may be a peer's copy: run it once more without.
// Exit status 0: equal. 1: a page differs or is damaged, or a node does not answer.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/page_name.h"
#include "page/page.h"
#include "storenode/copy/rpc_peer.h"
#include "storenode/written/peer_pages.h"
#include "transport/secret.h"

namespace strata::storenode {
namespace {

constexpr size_t kPagesAtOnce = 32;
constexpr uint32_t kPagesListed = 1024;
constexpr size_t kThreads = 4;

// The checksum comes first.
bool same(const PageRef& a, const PageRef& b) {
  return std::memcmp(a->bytes + 4, b->bytes + 4, kPageBytes - 4) == 0;
}

// A node whose pages compute writes. It keeps one state of each page, so no llsn is asked for.
class WrittenPeer final : public CopyPeer {
 public:
  WrittenPeer(const transport::Secret& secret, const std::string& address)
      : address_(address), pages_(secret, {address, {}, {}}) {}
  [[nodiscard]] std::string name() const override { return address_; }
  StatusOr<CopyOffer> offer() override { return CopyOffer{}; }

  StatusOr<PageListing> list(PageId from, uint32_t pages_max,
                             const std::vector<CopyMark>& /*marks*/) override {
    STRATA_ASSIGN_OR_RETURN(std::vector<proto::SpaceSize> spaces, pages_.list());
    std::sort(spaces.begin(), spaces.end(),
              [](const auto& a, const auto& b) { return a.space < b.space; });
    PageListing listing;
    for (const auto& [space, pages] : spaces) {
      if (space.value < from.space) continue;
      for (uint32_t number = space.value == from.space ? from.number : 0;
           number < pages && listing.pages.size() < pages_max; ++number)
        listing.pages.push_back({space.value, number});
    }
    return listing;
  }

  StatusOr<std::vector<StatusOr<PageAnswer>>> get(const std::vector<PageId>& pages,
                                                  Llsn /*at_least*/, Llsn /*at_most*/) override {
    STRATA_ASSIGN_OR_RETURN(const std::vector<proto::PageGot> got, pages_.get(pages));
    std::vector<StatusOr<PageAnswer>> answers;
    answers.reserve(got.size());
    for (const proto::PageGot& one : got) {
      if (!one.status.ok()) {
        answers.emplace_back(one.status);
        continue;
      }
      auto page = std::make_shared<PageBuffer>();
      std::memcpy(page->bytes, one.bytes.data(), kPageBytes);
      answers.emplace_back(PageAnswer{std::move(page), one.llsn});
    }
    return answers;
  }

 private:
  const std::string address_;
  PeerPages pages_;
};

using Spaces = std::set<SpaceId>;

// The newest llsn any of them knows, and the dropped spaces, which all of them must know. One has
// the pages of these still, another one has not: they are not compared.
StatusOr<Llsn> newest_of(const CopyPeers& nodes, Spaces* dropped) {
  Llsn newest;
  for (const auto& node : nodes) {
    STRATA_ASSIGN_OR_RETURN(const CopyOffer offer, node->offer());
    newest = std::max(newest, offer.newest);
    Spaces here;
    for (const DroppedSpace& space : offer.dropped) here.insert(space.space);
    if (node == nodes[0]) *dropped = here;
    if (here != *dropped)
      return error_corruption(nodes[0]->name() + " knows of " + std::to_string(dropped->size()) +
                              " dropped spaces, " + node->name() + " of " +
                              std::to_string(here.size()) + ", and they are not the same");
  }
  return newest;
}

Status of_node(const CopyPeer& node, const Status& status) {
  if (status.ok()) return status;
  return with_message(status, node.name() + ": " + std::string(status.message()));
}

Status compare(const CopyPeers& nodes, const std::vector<PageId>& pages, Llsn at) {
  STRATA_ASSIGN_OR_RETURN(const auto first, nodes[0]->get(pages, at, Llsn{UINT64_MAX}));
  for (size_t n = 1; n < nodes.size(); ++n) {
    STRATA_ASSIGN_OR_RETURN(const auto other, nodes[n]->get(pages, at, Llsn{UINT64_MAX}));
    for (size_t i = 0; i < pages.size(); ++i) {
      if (is_not_found(first[i].status()) && is_not_found(other[i].status())) continue;
      STRATA_RETURN_IF_ERROR(of_node(*nodes[0], first[i].status()));
      STRATA_RETURN_IF_ERROR(of_node(*nodes[n], other[i].status()));
      if (!same(first[i]->page, other[i]->page))
        return error_corruption(
            "page " + text_of(pages[i]) + " as of llsn " + std::to_string(at.value) +
            " differs: " + nodes[0]->name() + " has llsn " + std::to_string(first[i]->llsn.value) +
            ", " + nodes[n]->name() + " has llsn " + std::to_string(other[i]->llsn.value));
    }
  }
  return ok_status();
}

// Every page that any of them has, once.
StatusOr<std::vector<PageId>> list_all(const CopyPeers& nodes, const Spaces& dropped) {
  std::set<PageId> pages;
  for (const auto& node : nodes) {
    for (PageId from{};;) {
      STRATA_ASSIGN_OR_RETURN(const PageListing listing, node->list(from, kPagesListed, {}));
      for (const PageId page : listing.pages)
        if (dropped.count(SpaceId{page.space}) == 0) pages.insert(page);
      if (listing.pages.size() < kPagesListed) break;
      from = PageId::unpack(listing.pages.back().packed() + 1);
    }
  }
  return std::vector<PageId>(pages.begin(), pages.end());
}

// Some at a time, those that nobody has taken yet.
Status compare_some(const CopyPeers& nodes, const std::vector<PageId>& all, Llsn at,
                    std::atomic<size_t>* next) {
  for (;;) {
    const size_t first = next->fetch_add(kPagesAtOnce);
    if (first >= all.size()) return ok_status();
    const auto begin = all.begin() + static_cast<ptrdiff_t>(first);
    const auto count = static_cast<ptrdiff_t>(std::min(kPagesAtOnce, all.size() - first));
    STRATA_RETURN_IF_ERROR(compare(nodes, {begin, begin + count}, at));
  }
}

// Nodes mostly wait for their disks, so they are asked by several threads; peers are not
// thread-safe.
StatusOr<uint64_t> compare_all(const std::function<CopyPeers()>& connect) {
  const CopyPeers nodes = connect();
  Spaces dropped;
  STRATA_ASSIGN_OR_RETURN(const Llsn at, newest_of(nodes, &dropped));
  STRATA_ASSIGN_OR_RETURN(const std::vector<PageId> all, list_all(nodes, dropped));
  std::atomic<size_t> next{0};
  std::vector<Status> ends(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (Status& end : ends)
    threads.emplace_back([&] { end = compare_some(connect(), all, at, &next); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& end : ends) STRATA_RETURN_IF_ERROR(end);
  return all.size();
}

std::shared_ptr<CopyPeer> peer_of(const transport::Secret& secret, const std::string& address,
                                  bool written, bool mend) {
  const bool has_kind = address.starts_with("tcp:") || address.starts_with("unix:");
  const std::string full = has_kind ? address : "tcp:" + address;
  if (written) return std::make_shared<WrittenPeer>(secret, full);
  RpcPeerOptions options;
  options.name = address;
  options.as_reader = mend;
  options.address = [full] { return full; };
  return std::make_shared<RpcPeer>(secret, options);
}

int run(int argc, char** argv) {
  const std::string_view option = argc > 1 ? argv[1] : "";
  const bool mend = option == "--mend";
  const bool written = option == "--written";
  const int first = mend || written ? 2 : 1;
  if (argc < first + 3) {
    std::fprintf(stderr,
                 "usage: strata_compare_pages [--written | --mend] SECRET_FILE ADDRESS...\n");
    return 2;
  }
  const auto secret = transport::load_secret(argv[first]);
  if (!secret.ok()) {
    std::fprintf(stderr, "%s\n", std::string(secret.status().message()).c_str());
    return 2;
  }
  const StatusOr<uint64_t> compared = compare_all([&] {
    CopyPeers nodes;
    for (int i = first + 1; i < argc; ++i)
      nodes.push_back(peer_of(*secret, argv[i], written, mend));
    return nodes;
  });
  if (!compared.ok()) {
    std::fprintf(stderr, "%s\n", std::string(compared.status().message()).c_str());
    return 1;
  }
  std::printf("%llu pages are equal on %d nodes\n", static_cast<unsigned long long>(*compared),
              argc - first - 1);
  return 0;
}

}  // namespace
}  // namespace strata::storenode

int main(int argc, char** argv) { return strata::storenode::run(argc, argv); }
