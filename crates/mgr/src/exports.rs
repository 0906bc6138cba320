//! Exports: the directories that clients may mount, which client sees which export, and the pseudo directories above
//! exports (RFC 8881 §7.3).
//!
//! The mgr identifies an export by its directory. The mgr looks up the configured paths again whenever a client looks
//! up a name on the path of an export. A [`Place`] says through which export a client has reached a file.
//!
//! A file belongs to the innermost export that contains it, whether or not the client sees this export.
//! [`Exports::enter`] checks this for every filehandle of a request, and [`Exports::descend`] and [`Exports::ascend`]
//! check it for every name that a client looks up.
//!
//! No file moves from one export to another, and no directory on the path of an export moves. So only a change of the
//! configuration can put a file into another export. After such a change, the mgr finds the export of a directory by
//! following its parent directories. For other files, it refuses filehandles from before the change.

mod recorded;
mod terms;

use crate::caller::Seen;
use crate::config::KernelLayout;
use crate::handle::Named;
use bytes::Bytes;
use ipnet::IpNet;
use layout::{Policy, Settings};
use meta::{Embedded, Namespace};
use nfs::exports::{Place, Terms, View};
use nfs::fs::DirPage;
use recorded::{Recorded, Rooted};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use types::{Attrs, Cred, DirEntry, FileId, FileKind, Fsid, Status};

/// Largest number of exports of one mgr: a [`View`] has one bit for each export.
pub(crate) const EXPORTS_MAX: usize = 64;
/// Lowest cookie of an entry in a pseudo directory. Cookies 0, 1 and 2 are reserved (RFC 8881 §18.23.3).
const FIRST_COOKIE: u64 = 3;

/// One configured export: its path, its conditions of access, and the policy and layout type of its files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    /// The names on the path from the root directory to the exported directory.
    pub(crate) path: Vec<Bytes>,
    /// The networks whose clients may mount the export; empty: all clients may.
    pub(crate) clients: Vec<IpNet>,
    /// Whether clients on other hosts must use a source port below 1024. Only the superuser of a client host may use
    /// such a port.
    pub(crate) privileged_ports: bool,
    pub(crate) terms: Terms,
    /// Layout policy of new files whose directories have no policy settings.
    pub(crate) policy: Policy,
    /// The policy settings that the mgr sends to clients: all settings that differ from the default policy.
    pub(crate) client_settings: Settings,
    /// The layout type that the mgr offers to kernel clients of this export.
    pub(crate) kernel_layout: KernelLayout,
    /// File length in bytes below which kernel clients use the mgr path; `None`: the stripe unit of the file.
    pub(crate) mds_threshold: Option<u64>,
}

/// The directories of the configured exports and the directories on the paths to them, as the mgr last looked them up.
#[derive(Debug, Default)]
struct Found {
    /// The directory of each configured export; `None` if no such directory exists.
    roots: Vec<Option<FileId>>,
    /// For each directory on the path of an export: the names in it that lead to exports. For each name: the directory
    /// with this name, and a bit set of the exports at or below this directory.
    ways: HashMap<FileId, BTreeMap<Bytes, (FileId, u64)>>,
    /// For each directory: the names in it that are components of an export's path, even if no directory has the name.
    steps: HashMap<FileId, HashSet<Bytes>>,
}

impl Found {
    /// Returns the index of the first configured export that exports the directory `root` and that the caller sees.
    fn rule(&self, root: FileId, view: View) -> Option<u16> {
        let of_root = |n: &u16| self.roots[usize::from(*n)] == Some(root) && view.has(*n);
        (0..self.roots.len() as u16).find(of_root)
    }

    fn is_root(&self, dir: FileId) -> bool {
        self.roots.contains(&Some(dir))
    }

    /// Returns whether the entry `name` of `dir` is an exported directory, or lies on the path to an exported
    /// directory.
    fn is_way(&self, (dir, name): (FileId, &[u8])) -> bool {
        self.ways.get(&dir).is_some_and(|names| names.contains_key(name))
    }

    fn is_step(&self, (dir, name): (FileId, &[u8])) -> bool {
        self.steps.get(&dir).is_some_and(|names| names.contains(name))
    }

    /// Returns whether `dir` is the root directory, or leads to an export that the caller sees.
    fn leads(&self, dir: FileId, view: View) -> bool {
        dir == FileId::ROOT || self.ways.get(&dir).is_some_and(|names| names.values().any(|(_, to)| to & view.0 != 0))
    }
}

/// The configured exports of a mgr, and the directories that are now at their paths.
#[derive(Debug)]
pub(crate) struct Exports {
    rules: Vec<Rule>,
    /// The conditions of access to pseudo directories, which belong to no export.
    outside: Rule,
    /// Whether the root directory is the only export.
    only_root: bool,
    /// Whether all clients see all exports, so that the mgr need not check the peer of a request.
    open: bool,
    namespace: Arc<Namespace<Embedded>>,
    /// The record of exports in the metadata store, as of the start of this mgr.
    recorded: Recorded,
    found: RwLock<Found>,
    /// Locked while a task looks up the export paths and updates `found`, so that an older result does not replace a
    /// newer one.
    looking: Mutex<()>,
}

impl Exports {
    /// Creates the table of exports from 1 to [`EXPORTS_MAX`] configured exports. Records the exports in the store
    /// before the mgr serves clients. `is_new`: no mgr has ever served the store.
    ///
    /// # Errors
    /// The status with which the metadata store failed.
    pub(crate) async fn start(
        rules: Vec<Rule>,
        namespace: Arc<Namespace<Embedded>>,
        is_new: bool,
    ) -> Result<Self, Status> {
        let outside = Rule {
            path: Vec::new(),
            clients: Vec::new(),
            privileged_ports: false,
            terms: Terms { read_only: true, ..Terms::default() },
            policy: Policy::default(),
            client_settings: Settings::default(),
            kernel_layout: KernelLayout::None,
            mds_threshold: Some(0),
        };
        let only_root = rules.iter().all(|rule| rule.path.is_empty());
        let open = rules.iter().all(|rule| rule.clients.is_empty() && !rule.privileged_ports);
        let recorded = Recorded::default();
        let mut exports = Exports {
            rules,
            outside,
            only_root,
            open,
            namespace,
            recorded,
            found: RwLock::default(),
            looking: Mutex::default(),
        };
        exports.look();
        let recorded = Recorded::at_start(&exports.namespace, &exports.rooted(&exports.read()), is_new)?;
        exports.recorded = recorded;
        exports.record().await?;
        for (rule, _) in exports.rules.iter().zip(&exports.read().roots).filter(|(_, root)| root.is_none()) {
            tracing::warn!(path = %shown(rule), "the exported directory does not exist yet");
        }
        Ok(exports)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Found> {
        self.found.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the paths of all configured exports in the namespace again.
    fn look(&self) {
        let _one = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Found::default();
        for (n, rule) in self.rules.iter().enumerate() {
            let mut at = Some(FileId::ROOT);
            let mut steps = Vec::new();
            for name in &rule.path {
                let from = at;
                from.map(|dir| found.steps.entry(dir).or_default().insert(name.clone()));
                let child = from.and_then(|dir| self.namespace.lookup(&Cred::root(), dir, name).ok());
                at = child.filter(|attrs| attrs.kind == FileKind::Directory).map(|attrs| attrs.id);
                steps.extend(from.zip(at).map(|(dir, child)| (dir, name.clone(), child)));
            }
            found.roots.push(at);
            for (dir, name, child) in steps.into_iter().filter(|_| at.is_some()) {
                found.ways.entry(dir).or_default().entry(name).or_insert((child, 0)).1 |= 1 << n;
            }
        }
        *self.found.write().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Returns the exports whose directories exist now.
    fn rooted<'a>(&'a self, found: &Found) -> Vec<Rooted<'a>> {
        let all = self.rules.iter().zip(&found.roots);
        all.filter_map(|(rule, root)| Some((&rule.path[..], (*root)?))).collect()
    }

    /// Looks up the export paths again after a client has looked up or created a name in `dir`. The mgr calls this
    /// function before it replies to the client, because `dir` may now contain the directory of an export.
    pub(crate) fn passed(&self, dir: FileId) {
        // Look up the export paths only if `dir` is on such a path and some export has no directory yet. An export that
        // has a directory never gets another one.
        let may_begin = |found: &Found| found.steps.contains_key(&dir) && found.roots.contains(&None);
        if !self.only_root && may_begin(&self.read()) {
            self.look();
        }
    }

    /// Checks that a client may move, remove or replace the entry `name`. The entry must not be an exported directory,
    /// or lie on the path of an exported directory. With `into`, `name` is the target of a rename.
    ///
    /// # Errors
    /// `XDev`, as for a mount point.
    pub(crate) fn may_move(&self, name: (FileId, &Bytes), into: bool) -> Result<(), Status> {
        let name = (name.0, &name.1[..]);
        if self.only_root || !self.read().is_step(name) {
            return Ok(());
        }
        self.look();
        let found = self.read();
        if into || found.is_way(name) { Err(Status::XDev) } else { Ok(()) }
    }

    /// Returns the root directory of the innermost export that contains `dir`, whether or not the client sees this
    /// export. `None` if no export contains `dir`.
    fn innermost(&self, dir: FileId) -> Result<Option<FileId>, Status> {
        let mut at = dir;
        loop {
            if self.read().is_root(at) {
                return Ok(Some(at));
            }
            if at == FileId::ROOT {
                return Ok(None);
            }
            at = self.namespace.lookup_parent(&Cred::root(), at)?.id;
        }
    }

    /// Returns `place` (an export, and an exports epoch) with the current exports epoch of its export, for a file that
    /// a client has just looked up.
    pub(crate) fn reached_now(&self, place: Place) -> Place {
        Place { epoch: self.recorded.good_from(place.root), ..place }
    }

    /// Returns the set of exports that a peer sees. A client that connects over the Unix socket of this host counts as
    /// 127.0.0.1.
    pub(crate) fn view(&self, peer: Seen) -> View {
        if self.open {
            return View::ALL;
        }
        self.view_of(peer, |rule| peer.privileged || !rule.privileged_ports)
    }

    /// Returns whether the peer would see at least one export if its source port were below 1024.
    pub(crate) fn are_for_privileged_ports(&self, peer: Seen) -> bool {
        self.view_of(peer, |_| true) != View::NONE
    }

    fn view_of(&self, peer: Seen, may: impl Fn(&Rule) -> bool) -> View {
        let names = |rule: &Rule| match peer.ip {
            _ if rule.clients.is_empty() => true,
            Some(ip) => rule.clients.iter().any(|net| net.contains(&ip)),
            None => false,
        };
        let seen = self.rules.iter().enumerate().filter(|(_, rule)| names(rule) && may(rule));
        View(seen.fold(0, |bits, (n, _)| bits | 1 << n))
    }

    /// Returns the configured export ([`Rule`]) that a [`Place`] names.
    pub(crate) fn rule(&self, place: Place) -> &Rule {
        self.rules.get(usize::from(place.terms)).unwrap_or(&self.outside)
    }

    /// Returns the configured export of the root directory; `None` if the caller does not see this export.
    pub(crate) fn of_everything(&self, view: View) -> Option<&Rule> {
        self.read().rule(FileId::ROOT, view).map(|n| &self.rules[usize::from(n)])
    }

    /// Returns the [`Place`] of the root directory, for a caller that sees the exports in `view`.
    pub(crate) fn root(&self, view: View) -> Place {
        if !self.only_root {
            self.look();
        }
        self.export(FileId::ROOT, view).unwrap_or(Place::OUTSIDE)
    }

    /// Returns the [`Place`] of an exported directory; `None` if the caller does not see the export.
    fn export(&self, root: FileId, view: View) -> Option<Place> {
        let epoch = self.recorded.good_from(root);
        self.read().rule(root, view).map(|terms| Place { root, terms, epoch })
    }

    /// Implements [`nfs::fs::FileSystem::descend`]: returns the [`Place`] of `child`, an entry of a directory in
    /// `place`.
    pub(crate) fn descend(&self, place: Place, view: View, child: FileId) -> Result<Place, Status> {
        if self.only_root || child == place.root || !self.read().is_root(child) {
            return Ok(self.reached_now(place));
        }
        match self.export(child, view) {
            Some(place) => Ok(place),
            None if place.is_outside() => Ok(place),
            None => Err(Status::Access),
        }
    }

    /// Implements [`nfs::fs::FileSystem::ascend`]: returns the [`Place`] of the parent of `dir`. If `dir` is the root
    /// of an export, the parent belongs to the next outer export. If there is no outer export, or the caller does not
    /// see it, the parent is a pseudo directory.
    pub(crate) fn ascend(&self, place: Place, view: View, dir: FileId) -> Result<Place, Status> {
        if dir != place.root || dir == FileId::ROOT {
            return Ok(self.reached_now(place));
        }
        let parent = self.namespace.lookup_parent(&Cred::root(), dir)?.id;
        let above = self.innermost(parent)?.and_then(|root| self.export(root, view));
        Ok(above.unwrap_or(Place::OUTSIDE))
    }

    /// Returns the [`Place`] that a filehandle names, for the client that sent the filehandle.
    ///
    /// # Errors
    /// `Access` if the client does not see the export. `Stale` if the export does not exist, or the file belongs to
    /// another export now.
    pub(crate) fn enter(&self, named: Named, view: View) -> Result<Place, Status> {
        let Named { file, root, epoch } = named;
        if root == Place::OUTSIDE.root {
            if !self.only_root && !self.read().leads(file, view) {
                self.look();
            }
            return if self.read().leads(file, view) { Ok(Place::OUTSIDE) } else { Err(Status::Stale) };
        }
        let Some(place) = self.export(root, view) else {
            self.look();
            return match self.export(root, view) {
                Some(place) => self.within(place, file, epoch),
                None if self.read().is_root(root) => Err(Status::Access),
                None => Err(Status::Stale),
            };
        };
        self.within(place, file, epoch)
    }

    /// Checks that a file still belongs to the export of `place`. `epoch` is the export epoch in the client's
    /// filehandle. Returns `place` with the epoch `epoch`.
    fn within(&self, place: Place, file: FileId, epoch: u32) -> Result<Place, Status> {
        let place = Place { epoch, ..place };
        if self.only_root {
            return Ok(place);
        }
        let is_there = match self.namespace.getattr(file).map(|attrs| attrs.kind) {
            Ok(FileKind::Directory) => self.innermost(file)? == Some(place.root),
            Ok(_) => self.recorded.good_from(place.root) <= epoch,
            // The file does not exist, so return no error here: the operation of the client returns `Stale`.
            Err(_) => true,
        };
        if is_there { Ok(place) } else { Err(Status::Stale) }
    }

    /// Looks up a name in a pseudo directory, among the names that lead to exports the client sees.
    pub(crate) fn lookup(&self, view: View, dir: FileId, name: &Bytes) -> Result<Attrs, Status> {
        self.look();
        let child = self.read().ways.get(&dir).and_then(|names| names.get(name)).copied();
        let (child, _) = child.filter(|(_, to)| to & view.0 != 0).ok_or(Status::NoEnt)?;
        self.namespace.getattr(child)
    }

    /// Lists the entries of a pseudo directory that the client sees, after the cookie `after`.
    pub(crate) fn readdir(&self, view: View, dir: FileId, after: u64) -> Result<DirPage, Status> {
        self.look();
        let names = self.read().ways.get(&dir).cloned().unwrap_or_default();
        let mut entries = Vec::new();
        for (name, (child, to)) in names.into_iter().filter(|(_, (_, to))| to & view.0 != 0) {
            // Only one name in a pseudo directory leads to a given export. So the lowest number of the exports below a
            // name differs from that of every other name, and serves as the READDIR cookie of the name while the mgr
            // runs.
            let cookie = FIRST_COOKIE + u64::from(to.trailing_zeros());
            if cookie > after {
                entries.push(DirEntry { name, cookie, attrs: self.namespace.getattr(child)? });
            }
        }
        entries.sort_by_key(|entry| entry.cookie);
        Ok(DirPage { entries, eof: true })
    }

    /// Returns the `fsid` attribute of the files of an export. The export of the root directory has the id of the file
    /// system. Every other export has an id derived from this id and the directory of the export.
    pub(crate) fn fsid(&self, fsid: Fsid, place: Place) -> Fsid {
        if place.root == FileId::ROOT {
            return fsid;
        }
        let mut id = fsid.0;
        // `wrapping_mul` by an odd number maps different directories to different numbers. For a pseudo directory, the
        // number of the exported directory is 0, so the fsid differs from the fsid of every export.
        let number = (place.root.0.wrapping_mul(2) | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        id[8..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, with)| *byte ^= with);
        Fsid(id)
    }

    /// Returns every configured export with its path as text, for display.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (String, &Rule)> {
        self.rules.iter().map(|rule| (shown(rule), rule))
    }
}

fn shown(rule: &Rule) -> String {
    rule.path.iter().fold(String::from("/"), |mut path, name| {
        if path.len() > 1 {
            path.push('/');
        }
        path + &String::from_utf8_lossy(name)
    })
}
