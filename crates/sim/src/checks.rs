//! The final checks of a simulated run, after all clients have ended and all faults are over.

use crate::cluster::{self, Cluster};
use crate::fsck;
use crate::hosts::AUDITOR;
use crate::model::Reader;
use crate::names::{self, NameReply, NameRequest, Operation, Search};
use crate::workload::World;
use client::{Mount, Node, OpenFlags};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use types::FileId;

/// Time limit, in simulated time, for the mgr to free all state of clients and finish all pending work.
const SETTLE: Duration = Duration::from_secs(300);

/// Waits until `holds` returns true. Fails if `holds` does not return true within `limit`.
pub async fn within(limit: Duration, holds: impl Fn() -> bool) -> Result<(), ()> {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(limit, wait).await.map_err(drop)
}

/// Runs all final checks of a simulated run, one after another.
pub async fn all(world: &World, cluster: &RefCell<Cluster>) -> Result<(), String> {
    // Wait until the last fault has ended and the leases of killed clients have expired.
    let quiet = Duration::from_millis(world.plan.quiet_ms);
    tokio::time::sleep(quiet.saturating_sub(crate::trace::elapsed())).await;
    tokio::time::sleep(Duration::from_secs(10 * u64::from(world.plan.lease_secs) + 30)).await;
    let lists = cluster::on_host(AUDITOR, audit(world.clone())).await??;
    world.note(|history| {
        for (index, list) in lists.into_iter().enumerate() {
            let (began, ended) = (history.model.tick(), history.model.tick());
            let reply = NameReply::Names(list);
            let listed = Operation { ended: Some(ended), reply, ..Operation::new(AUDITOR, NameRequest::List, began) };
            history.names[index].push(listed);
            match names::explain(&history.names[index], (&history.mgr_deaths, &history.power_cuts)) {
                Ok(Search::Explained) => {}
                Ok(Search::GivenUp) => history.unsearched += 1,
                Err(why) => history.model.fail(format!("directory {index}: {why}")),
            }
        }
    });
    if within(SETTLE, || left_over(cluster).is_empty()).await.is_err() {
        let left = left_over(cluster);
        world.history().model.fail(format!("state that nobody uses is still there: {}", left.join(", ")));
    }
    for finding in cluster::on_host(AUDITOR, fsck::findings()).await?? {
        let file = FileId(finding.inode.unwrap_or(0));
        world.history().model.fail(format!("fsck: {} {}: {}", finding.code, file.0, finding.text));
    }
    Ok(())
}

/// Returns one description for each kind of client state or pending work that the mgr still has after the last client
/// has ended. The returned list must be empty.
fn left_over(cluster: &RefCell<Cluster>) -> Vec<String> {
    let cluster = cluster.borrow();
    let Some(status) = cluster.mgr.status() else { return vec!["the mgr does not serve".into()] };
    let mut left = Vec::new();
    let counts =
        ["clients", "sessions", "open_files", "locks", "lock_waits", "delegations", "layouts", "recalls_pending"];
    for group in status.groups.iter().filter(|group| group.name == "mgr") {
        for (name, value) in &group.values {
            let value = format!("{value:?}");
            if counts.contains(&name.as_str()) && !value.ends_with("(0)") {
                left.push(format!("{name} {value}"));
            }
        }
    }
    let work = status.group("work").into_iter().flat_map(|group| &group.values);
    let pending = work.filter(|(_, value)| *value != wire::admin::Value::Number(0));
    left.extend(pending.map(|(name, value)| format!("{name} {value:?}")));
    let Some(namespace) = cluster.mgr.namespace() else { return left };
    match (namespace.orphans(FileId(0), 10), namespace.doomed(FileId(0), 10)) {
        (Ok(orphans), Ok(doomed)) => {
            left.extend(orphans.iter().map(|file| format!("orphan {}", file.0)));
            left.extend(doomed.iter().map(|doomed| format!("doomed {}", doomed.id.0)));
        }
        (orphans, doomed) => left.push(format!("unreadable lists: {orphans:?}, {doomed:?}")),
    }
    left
}

/// Reads all files through a new mount and compares their bytes with the model. Returns, for each directory, its names
/// and the file of each name.
async fn audit(world: World) -> Result<Vec<BTreeMap<u8, u64>>, String> {
    let mount = cluster::mount(cluster::options(&world.plan, AUDITOR, true, true)).await?;
    let mut lists = Vec::new();
    let mut nodes: Vec<Node> = world.files.to_vec();
    for dir in world.dirs.iter() {
        let mut names = BTreeMap::new();
        let mut pages = mount.readdir(dir);
        while let Some(page) = pages.next_page().await.map_err(|e| format!("listing a directory: {e}"))? {
            for entry in page {
                let text = String::from_utf8_lossy(&entry.name).into_owned();
                let name = text.trim_start_matches('n').parse().map_err(|_| format!("a strange name {text:?}"))?;
                if names.insert(name, entry.node.id.0).is_some() {
                    return Err(format!("{text} is there twice"));
                }
                if entry.attrs.kind == types::FileKind::Regular && !nodes.contains(&entry.node) {
                    nodes.push(entry.node);
                }
            }
        }
        lists.push(names);
    }
    for node in nodes {
        compare(&world, &mount, &node).await?;
    }
    mount.disconnect().await.map_err(|e| format!("unmounting at the end: {e}"))?;
    Ok(lists)
}

async fn compare(world: &World, mount: &Mount, node: &Node) -> Result<(), String> {
    let told = |what: &str, e: client::Error| format!("{what} file {} at the end: {e}", node.id.0);
    let began = world.history().model.tick();
    let reader = Reader { client: AUDITOR, opened: began, began };
    let file = mount.open(node, OpenFlags::READ).await.map_err(|e| told("opening", e))?;
    let size = file.size();
    let got = file.read_at(0, size as usize + 100).await.map_err(|e| told("reading", e))?.to_vec();
    let reader = Reader { began: world.history().model.tick(), ..reader };
    world.note(|history| {
        history.model.check_size(node.id, reader, size);
        history.model.check_read(node.id, reader, 0, size, &got);
        if got.len() as u64 != size {
            history.model.fail(format!("file {} has {size} bytes, of which {} can be read", node.id.0, got.len()));
        }
    });
    file.close().await.map_err(|e| told("closing", e))
}
