//! Health summary of a cluster for administrators, computed from the status report of the mgr.

use crate::show;
use wire::admin::{Group, Status, Value};

/// The health of a cluster, as at most ten lines of text.
pub struct Health {
    /// The problems of the cluster, one line each; empty if the cluster is healthy.
    pub problems: Vec<String>,
    lines: Vec<(&'static str, String)>,
}

impl Health {
    /// Computes the health from a status report of the mgr.
    pub fn of(status: &Status) -> Self {
        let iods: Vec<&Group> = status.groups.iter().filter(|group| group.name == "iod").collect();
        let empty = Group::new("");
        let group = |name| status.group(name).unwrap_or(&empty);
        let (mgr, work) = (group("mgr"), group("work"));
        let mut problems: Vec<String> = iods.iter().filter_map(|iod| problem(iod)).collect();
        let damaged = group("store").get_number("damaged_records_met");
        if damaged > 0 {
            problems.push(format!("the mgr read damaged metadata records {damaged} times; run \"weir fsck\""));
        }
        let panics = group("network").get_number("panics");
        if panics > 0 {
            problems.push(format!("the mgr had {}; see its log", count(panics, "internal error")));
        }
        let up = iods.iter().filter(|iod| is_up(iod)).count();
        let lines = vec![
            ("mgr", format!("{}, up for {}", text(mgr, "software"), age(mgr.get_number("uptime_secs")))),
            ("iods", format!("{up} of {} up", iods.len())),
            ("capacity", capacity(mgr)),
            ("files", mgr.get_number("files").to_string()),
            ("clients", clients(mgr)),
            ("work", pending(work)),
            ("metadata", format!("{} on the mgr's disk", show::size(group("store").get_number("size_bytes")))),
        ];
        Health { problems, lines }
    }

    /// Returns whether the cluster has a problem.
    pub fn is_degraded(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Returns the health as one word, `healthy` or `degraded`.
    pub fn verdict(&self) -> &'static str {
        if self.is_degraded() { "degraded" } else { "healthy" }
    }

    /// Returns the health as lines of text. The first line is the word for the health of the cluster.
    pub fn text(&self) -> String {
        let mut out = format!("{:<9} {}\n", "health", self.verdict());
        for problem in &self.problems {
            out += &format!("{:<9} {}\n", "  problem", show::path(problem.as_bytes()));
        }
        for (name, value) in &self.lines {
            out += &format!("{name:<9} {}\n", show::path(value.as_bytes()));
        }
        out
    }
}

fn text<'a>(group: &'a Group, name: &str) -> &'a str {
    match group.get(name) {
        Some(Value::Text(text)) => text,
        _ => "?",
    }
}

fn is_up(iod: &Group) -> bool {
    text(iod, "state") == "up"
}

/// Describes the problem of an iod. Returns `None` if the iod is neither down nor full.
fn problem(iod: &Group) -> Option<String> {
    let who = match iod.get("id") {
        Some(Value::Text(id)) => format!("iod {id} at {}", text(iod, "address")),
        _ => format!("the iod at {}", text(iod, "address")),
    };
    if !is_up(iod) {
        let why = match iod.get("problem") {
            Some(Value::Text(why)) => format!(": {why}"),
            _ => String::new(),
        };
        return Some(format!("{who} is down{why}"));
    }
    let full = iod.get_number("capacity_bytes") > 0 && iod.get_number("free_bytes") == 0;
    full.then(|| format!("{who} is full"))
}

fn capacity(mgr: &Group) -> String {
    let (total, free) = (mgr.get_number("capacity_bytes"), mgr.get_number("free_bytes"));
    let used = total.saturating_sub(free);
    let percent = if total > 0 { (u128::from(used) * 100).div_ceil(u128::from(total)) } else { 0 };
    format!("{}, {} used ({percent} %), {} free", show::size(total), show::size(used), show::size(free))
}

fn clients(mgr: &Group) -> String {
    let mut out = mgr.get_number("clients").to_string();
    for (name, what) in
        [("clients_lapsed", "silent for longer than a lease"), ("open_files", "files open"), ("locks", "locks")]
    {
        let number = mgr.get_number(name);
        if number > 0 {
            out += &format!(", {number} {what}");
        }
    }
    out
}

/// Describes the pending work of the mgr on files, as text.
fn pending(work: &Group) -> String {
    let parts = [
        ("doomed", "removed file whose space is not free yet", "removed files whose space is not free yet"),
        ("unused", "moved file whose old space is not free yet", "moved files whose old space is not free yet"),
        ("orphans", "removed file still open", "removed files still open"),
        ("sizes_to_learn", "file to measure", "files to measure"),
        ("cuts_pending", "truncation to finish", "truncations to finish"),
        ("fences_pending", "fence to raise", "fences to raise"),
        ("copies_to_make", "file with a copy to be made again", "files with a copy to be made again"),
    ];
    let mut said: Vec<String> = parts
        .into_iter()
        .map(|(name, one, many)| (work.get_number(name), one, many))
        .filter(|(number, ..)| *number > 0)
        .map(|(number, one, many)| format!("{number} {}", if number == 1 { one } else { many }))
        .collect();
    if work.get("copies_looked_at_percent").is_some() {
        said.push(format!("looking for lost copies: {} % done", work.get_number("copies_looked_at_percent")));
    }
    if said.is_empty() { "nothing pending".to_owned() } else { said.join(", ") }
}

fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Formats a duration in its two largest units, such as days and hours.
fn age(secs: u64) -> String {
    match (secs / 86_400, secs / 3600 % 24, secs / 60 % 60) {
        (0, 0, 0) => format!("{secs} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", secs % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iod(state: &str, free: u64) -> Group {
        let mut group = Group::new("iod");
        group.text("address", "10.0.0.7:2050");
        group.text("state", state);
        group.text("id", "x-1");
        group.number("capacity_bytes", 1000);
        group.number("free_bytes", free);
        group
    }

    fn status(iods: Vec<Group>) -> Status {
        let mut mgr = Group::new("mgr");
        mgr.text("software", "weir 0.1.0");
        mgr.number("uptime_secs", 3 * 3600 + 60);
        mgr.number("capacity_bytes", 4096);
        mgr.number("free_bytes", 1024);
        mgr.number("clients", 2);
        let mut work = Group::new("work");
        work.number("orphans", 1);
        Status { groups: [vec![mgr], iods, vec![work]].concat() }
    }

    #[test]
    fn a_healthy_cluster_has_a_summary_of_at_most_ten_lines() {
        let health = Health::of(&status(vec![iod("up", 5), iod("up", 7)]));
        let text = health.text();
        assert!(!health.is_degraded() && text.lines().count() <= 10, "{text}");
        for part in ["health    healthy", "2 of 2 up", "3.0 KiB used (75 %)", "3 h 1 min", "1 removed file still open"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn problems_of_a_degraded_cluster_come_first() {
        let mut down = iod("down", 5);
        down.text("problem", "connection refused");
        let mut damaged = status(vec![iod("up", 0), down]);
        let mut store = Group::new("store");
        store.number("damaged_records_met", 3);
        damaged.groups.push(store);
        let health = Health::of(&damaged);
        let text = health.text();
        assert_eq!(health.problems.len(), 3, "{text}");
        assert!(text.starts_with("health    degraded\n"), "{text}");
        for part in ["iod x-1 at 10.0.0.7:2050 is down: connection refused", "is full", "weir fsck", "1 of 2 up"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn an_empty_status_has_a_summary() {
        assert!(Health::of(&Status::default()).text().contains("0 of 0 up"));
    }
}
