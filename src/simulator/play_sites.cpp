#include "simulator/play_sites.h"

#include <algorithm>

#include "base/check.h"

namespace heddle {
namespace {

/// Steps that are played before time counts, so that what is on the links is as in all later ones.
constexpr int kStepsToSettle = 100;

class SitePlayer {
 public:
  explicit SitePlayer(const SiteCourse& course)
      : course_(course),
        by_step_(static_cast<std::size_t>(course.window)),
        ends_(course.exchanges.size(), 0.0) {
    int links = 1;
    for (std::size_t i = 0; i < course.exchanges.size(); ++i) {
      const SiteExchange& exchange = course.exchanges[i];
      const int awaited = exchange.turn + exchange.steps_under_way;
      HEDDLE_CHECK(exchange.turn >= 0 && exchange.turn < course.window &&
                       exchange.steps_under_way <= course.window,
                   "an exchange in step {} of {} is awaited {} later", exchange.turn, course.window,
                   exchange.steps_under_way);
      add(exchange.turn, {exchange.begins_at, false, i});
      add(awaited % course.window, {exchange.awaited_at, true, i});
      links = std::max(links, exchange.link + 1);
    }
    free_at_.resize(static_cast<std::size_t>(links), 0.0);
    // At the same time what is sent goes first: it may be awaited at once.
    for (auto& points : by_step_) {
      std::ranges::stable_sort(points, [](const Point& a, const Point& b) {
        return a.at != b.at ? a.at < b.at : a.is_wait < b.is_wait;
      });
    }
  }

  PlayedSites play() {
    const int windows = (kStepsToSettle + course_.window - 1) / course_.window;
    for (int i = 0; i < windows; ++i) play_window();
    const double begin = now_;
    waited_ = work_ = 0.0;
    for (int i = 0; i < 2 * windows; ++i) play_window();
    const double steps = 2.0 * windows * course_.window, seconds = (now_ - begin) / steps;
    return {.step_seconds = seconds,
            .waited_seconds = waited_ / steps,
            .work_seconds = work_ / steps,
            .utilisation = course_.step_seconds / seconds};
  }

 private:
  struct Point {
    double at;
    bool is_wait;
    std::size_t exchange;
  };

  void add(int step, const Point& point) {
    by_step_[static_cast<std::size_t>(step)].push_back(point);
  }

  void play_window() {
    for (const auto& points : by_step_) {
      double done = 0.0;
      for (const Point& point : points) {
        now_ += point.at - done;
        done = point.at;
        point.is_wait ? await(point.exchange) : begin(point.exchange);
      }
      now_ += course_.step_seconds - done;
    }
  }

  void spend(double seconds) {
    now_ += seconds;
    work_ += seconds;
  }

  void begin(std::size_t number) {
    const SiteExchange& exchange = course_.exchanges[number];
    spend(exchange.work_before);
    double& link = free_at_[static_cast<std::size_t>(exchange.link)];
    link = std::max(link, now_) + exchange.link_seconds;
    ends_[number] = link + exchange.latency;
  }

  void await(std::size_t number) {
    waited_ += std::max(0.0, ends_[number] - now_);
    now_ = std::max(now_, ends_[number]);
    spend(course_.exchanges[number].work_behind);
  }

  const SiteCourse& course_;
  std::vector<std::vector<Point>> by_step_;
  std::vector<double> ends_;     // by exchange: of the last one that began
  std::vector<double> free_at_;  // by link
  double now_ = 0.0, waited_ = 0.0, work_ = 0.0;
};

}  // namespace

PlayedSites play_sites(const SiteCourse& course) { return SitePlayer(course).play(); }

}  // namespace heddle
