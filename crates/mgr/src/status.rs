//! The status that `weir status` shows: daemons, capacity and counters, as groups of names and values.

use crate::exports::Rule;
use crate::gateway::Gateway;
use crate::iods::Report;
use nfs::exports::Squash;
use types::FileId;
use wire::admin::{Group, Status};

/// Largest number of orphans, doomed files and files with unused objects that the status counts. If there are more, the
/// status shows this number.
const LISTED: usize = 10_000;

/// Returns the status of the mgr and of its iods.
pub(crate) fn of(gateway: &Gateway) -> Status {
    let volume = &gateway.server.fs().0;
    let mut groups = vec![mgr(gateway)];
    groups.extend(volume.iods.report().iter().map(iod));
    groups.extend(volume.exports.shown().map(|(path, rule)| export(&path, rule)));
    groups.push(operations(gateway));
    let mut payload = Group::new("counters");
    volume.counters.snapshot().rows().into_iter().for_each(|(name, value)| payload.number(name, value));
    groups.push(payload);
    groups.push(gathering(gateway));
    groups.push(work(gateway));
    groups.push(store(gateway));
    groups.push(network(gateway));
    Status { groups }
}

/// Returns the status that every client may see, even one that sees no export: the state and the version of the mgr.
pub(crate) fn for_strangers() -> Status {
    let mut group = Group::new("mgr");
    group.text("state", "up");
    group.text("software", concat!("weir ", env!("CARGO_PKG_VERSION")));
    Status { groups: vec![group] }
}

/// Returns which iods have the objects of a file: one group of status lines for the file, and one group for each
/// object. Returns no group for a file without objects.
pub(crate) fn placement(gateway: &Gateway, file: FileId) -> Status {
    let volume = &gateway.server.fs().0;
    let objects = volume.namespace.info(file).and_then(|info| volume.objects(&info));
    let Ok(Some(objects)) = objects else { return Status::default() };
    let mut whole = Group::new("placement");
    let columns = objects.width();
    if let Some(stripes) = objects.stripes() {
        whole.text("distribution", stripes.distribution.name());
        whole.number("stripe_unit", stripes.unit);
    }
    whole.number("copies", objects.mirrors() as u64);
    whole.number("object", file.0);
    let reports = volume.iods.report();
    let object = |index: usize| {
        let mut group = Group::new("object");
        group.number("copy", (index / columns) as u64);
        group.number("column", objects.column(index) as u64);
        if let Ok(registered) = volume.iods.registered(objects.iod(index)) {
            group.text("iod", registered.id);
            let report = reports.iter().find(|r| r.registered.as_ref().is_some_and(|known| known.id == registered.id));
            if let Some(report) = report {
                group.text("address", &report.address);
                group.text("state", if report.up { "up" } else { "down" });
            }
        }
        group
    };
    let groups = std::iter::once(whole).chain((0..objects.count()).map(object)).collect();
    Status { groups }
}

fn mgr(gateway: &Gateway) -> Group {
    let volume = &gateway.server.fs().0;
    let counts = gateway.server.inspect(|state| state.counts());
    let (total, free) = volume.iods.capacity();
    let mut group = Group::new("mgr");
    group.text("state", "up");
    group.text("software", concat!("weir ", env!("CARGO_PKG_VERSION")));
    group.text("fsid", volume.namespace.fsid());
    group.number("uptime_secs", gateway.started.elapsed().as_secs());
    group.number("capacity_bytes", total);
    group.number("free_bytes", free);
    group.number("files", volume.namespace.files().unwrap_or(0));
    group.number("clients", counts.clients as u64);
    group.number("sessions", counts.sessions as u64);
    group.number("clients_lapsed", counts.lapsed as u64);
    group.number("open_files", counts.opens as u64);
    group.number("locks", counts.locks as u64);
    group.number("lock_waits", counts.lock_waits as u64);
    group.number("delegations", counts.delegations as u64);
    group.number("layouts", counts.layouts as u64);
    group.number("queue_delay_us", u64::try_from(volume.queue_delay().as_micros()).unwrap_or(u64::MAX));
    group.number("recalls_pending", counts.recalls as u64);
    group
}

fn iod(report: &Report) -> Group {
    let mut group = Group::new("iod");
    group.text("address", &report.address);
    group.text("state", if report.up { "up" } else { "down" });
    if let Some(registered) = &report.registered {
        group.number("number", registered.number.into());
        group.text("id", registered.id);
    }
    if let Some(problem) = &report.problem {
        group.text("problem", problem);
    }
    if let Some(software) = &report.software {
        group.text("software", software);
    }
    if let Some(path) = &report.path {
        group.text("reached_at", path);
    }
    group.number("capacity_bytes", report.stats.capacity);
    group.number("free_bytes", report.stats.free);
    for counter in &report.stats.counters {
        group.number(&counter.name, counter.value);
    }
    group
}

fn export(path: &str, rule: &Rule) -> Group {
    let mut group = Group::new("export");
    let clients: Vec<String> = rule.clients.iter().map(ToString::to_string).collect();
    group.text("path", path);
    group.text("clients", if clients.is_empty() { "all".to_owned() } else { clients.join(" ") });
    group.text("access", if rule.terms.read_only { "ro" } else { "rw" });
    group.text(
        "squash",
        match rule.terms.squash {
            Squash::Nobody => "none",
            Squash::Root { .. } => "root",
            Squash::Everybody { .. } => "all",
        },
    );
    group
}

fn operations(gateway: &Gateway) -> Group {
    let counters = gateway.server.counters();
    let mut group = Group::new("operations");
    group.number("compounds", counters.compounds);
    group.number("replays", counters.replays);
    group.number("layouts_granted", counters.layouts);
    group.number("recalls", counters.recalls);
    group.number("copied_bytes", counters.copied_bytes);
    for op in &counters.ops {
        let name = op.name().trim_start_matches("OP_").to_ascii_lowercase();
        group.number(&name, op.ok + op.failed);
        if op.failed > 0 {
            group.number(&format!("{name}_failed"), op.failed);
        }
    }
    group
}

/// Returns the group of gathered writes: the number of files with held bytes, and the number of held bytes.
fn gathering(gateway: &Gateway) -> Group {
    let totals = gateway.server.fs().0.gathered.totals();
    let mut group = Group::new("gathering");
    group.number("files", totals.files as u64);
    group.number("held_bytes", totals.bytes as u64);
    group
}

/// Returns the group of unfinished work: the numbers of orphans, deletions, intents and repairs.
fn work(gateway: &Gateway) -> Group {
    let volume = &gateway.server.fs().0;
    let intents = volume.intents.counts();
    let mut group = Group::new("work");
    group.number("orphans", volume.namespace.orphans(FileId(0), LISTED).map_or(0, |list| list.len() as u64));
    group.number("doomed", volume.namespace.doomed(FileId(0), LISTED).map_or(0, |list| list.len() as u64));
    group.number("unused", volume.namespace.unused(FileId(0), LISTED).map_or(0, |list| list.len() as u64));
    group.number("intents_written", intents.written as u64);
    group.number("sizes_to_learn", intents.lost_writers as u64);
    group.number("cuts_pending", intents.truncations as u64);
    group.number("fences_pending", intents.fences as u64);
    let (copies, looked) = volume.damaged.progress();
    group.number("copies_to_make", copies as u64);
    if let Some(looked) = looked {
        let all = volume.namespace.next_id().map_or(1, |next| next.0).max(1);
        group.number("copies_looked_at_percent", (looked.0 as u128 * 100 / all as u128).min(99) as u64);
    }
    group
}

fn store(gateway: &Gateway) -> Group {
    let status = gateway.server.fs().0.namespace.status();
    let mut group = Group::new("store");
    group.text("kind", status.kind);
    group.number("size_bytes", status.bytes);
    group.number("batches", status.counters.batches);
    group.number("flushes", status.counters.flushes);
    group.number("checkpoints", status.counters.checkpoints);
    group.number("damaged_records_met", status.counters.corrupt);
    group.number("conflicts", status.counters.conflicts);
    group.number("written_bytes", status.counters.bytes);
    group
}

fn network(gateway: &Gateway) -> Group {
    let traffic = gateway.network.traffic();
    let mut group = Group::new("network");
    group.number("received_bytes", traffic.bytes_in);
    group.number("sent_bytes", traffic.bytes_out);
    group.number("connections_open", traffic.connections_open);
    group.number("connections_made", traffic.connections_opened);
    group.number("connections_refused", traffic.connections_refused);
    group.number("connections_cut", traffic.connections_cut);
    group.number("connections_malformed", traffic.connections_malformed);
    group.number("memory_held_bytes", traffic.memory_held);
    group.number("memory_most_bytes", traffic.memory_most);
    group.number("memory_waits", traffic.memory_waits);
    group.number("panics", traffic.panics);
    group
}
