//! Experiment E5: the request size at which the direct path and the mgr path are equally fast, and the gain from the
//! write threshold `auto`, with an idle and with a busy mgr.

use super::sweep::median;
use crate::report::{Bound, Table, ratios};
use crate::rig::{On, Rig, Run};
use crate::{Outcome, Setup};
use chart::{Chart, Curve};
use serde_json::Value;
use std::fs;

/// The loads of the mgr: name, the share of one processor that the mgr may use, and whether other clients read through
/// the mgr. For an overloaded mgr, the experiment does not measure throughput by request size, because that would take
/// too long. With a hundredth of a processor the mgr completes ten small writes in 100 ms, so each write takes twice as
/// long as on the direct path.
const MGRS: [(&str, Option<f64>, bool); 3] =
    [("idle", None, false), ("busy", Some(0.05), true), (OVERLOADED, Some(0.01), true)];
const OVERLOADED: &str = "overloaded";

pub fn run(setup: &Setup, rig: &Rig) -> Outcome<Table> {
    let (count, events) = if setup.quick { ("40", "8") } else { ("300", "30") };
    let title = "E5: bytes at which both ways take as long, and the threshold that auto has in the end";
    let mut table = Table::new(title, &["crossing", "auto", "s with 64K", "s with auto"]);
    let mut found = Vec::new();
    let mut curves = Vec::new();
    for (name, share, storm) in MGRS {
        let (mut crossings, mut learnt, mut times) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        for round in 0..setup.rounds {
            let _storm = if storm { Some(rig.storm()?) } else { None };
            rig.hold_mgr_to(share)?;
            let tuned = if name == OVERLOADED { Ok(Value::Null) } else { tune(rig, count) };
            let fixed = replay(rig, events, "64K");
            let auto = replay(rig, events, "auto");
            rig.hold_mgr_to(None)?;
            let (tuned, fixed, auto) = (tuned?, fixed?, auto?);
            learnt.push(last_threshold(&auto));
            times[0].push(fixed.seconds);
            times[1].push(auto.seconds);
            if !tuned.is_null() {
                crossings.push(crossing(&tuned));
            }
            for (way, field) in [("through the mgr", "mgr_us"), ("straight", "direct_us")] {
                let points = points(&tuned, field);
                if round == 0 && !points.is_empty() {
                    curves.push(Curve { name: format!("{way}, mgr {name}"), points });
                }
            }
        }
        table.row(format!("mgr {name}"), &[crossings.clone(), learnt.clone(), times[0].clone(), times[1].clone()]);
        found.push((crossings, learnt, times));
    }
    let chart = Chart { title: title.to_owned(), up: "us".to_owned(), curves, marks: Vec::new() };
    fs::write(setup.out.join("E5.svg"), chart.svg()?)?;
    let falls = |of: &[f64], to: &[f64]| of.iter().zip(to).map(|(a, b)| (a + 1.0) / (b + 1.0)).collect::<Vec<_>>();
    table.target(
        "size of writes at which both paths are equally fast: busy mgr over idle mgr",
        Bound::AtMost(0.99),
        &falls(&found[1].0, &found[0].0),
    );
    table.target("auto, busy over idle", Bound::AtMost(0.99), &falls(&found[1].1, &found[0].1));
    table.target(
        "write threshold that `auto` chooses with an overloaded mgr, bytes",
        Bound::AtMost(0.0),
        &[median(&found[2].1)],
    );
    let speed = |(.., [fixed, auto]): &(_, _, [Vec<f64>; 2])| ratios(fixed, auto);
    table.target("auto over 64K, idle, in speed", Bound::AtLeast(0.95), &speed(&found[0]));
    table.target("auto over 64K, overloaded, in speed", Bound::AtLeast(1.1), &speed(&found[2]));
    Ok(table)
}

/// Measures the throughput by request size on the direct path and on the mgr path with `weir tune threshold`.
fn tune(rig: &Rig, count: &str) -> Outcome<Value> {
    rig.told(&["tune", "threshold", "--json", "--rounds", "1", "--from", "4K", "--count", count, rig.weir_url()])
}

/// Replays writes of all sizes with this write threshold.
fn replay(rig: &Rig, events: &str, threshold: &str) -> Outcome<Run> {
    let words = ["--generate", "digitisation", "--no-fsync", "--each", "--write-threshold", threshold];
    rig.replay(On::Weir, &[&words[..], &["--events", events]].concat())
}

/// Returns the threshold that `auto` has chosen after the writes of a run.
fn last_threshold(run: &Run) -> f64 {
    let threshold = run.write_thresholds.first().copied().unwrap_or(0);
    // Show a threshold above all writes as a size just above the longest write.
    threshold.min(2 << 20) as f64
}

/// Returns the request size at which the direct path and the mgr path are equally fast. If one path is faster for all
/// sizes, returns the recommended write threshold instead, which shows the faster path.
fn crossing(tuned: &Value) -> f64 {
    let threshold = tuned["threshold"].as_u64().unwrap_or(0).min(2 << 20) as f64;
    tuned["crossing"].as_f64().unwrap_or(threshold)
}

fn points(tuned: &Value, field: &str) -> Vec<(f64, f64)> {
    let point = |point: &Value| Some((point["size"].as_f64()?, point[field][0].as_f64()?));
    tuned["points"].as_array().into_iter().flatten().filter_map(point).collect()
}
