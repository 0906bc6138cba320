//! Exports: which directories clients may mount, who sees which, and the way to those that are not the root.
//!
//! An export is known by its directory. Paths are looked up again whenever somebody is on the way to one.
//!
//! A file belongs to the innermost export that it is in, whoever sees that, and to no other. [`Exports::enter`] decides so for every handle that a client
//! sends, and [`Exports::descend`] and [`Exports::ascend`] for every step. Nothing moves between exports, and no directory that a path names moves at all, so
//! that only a change of the configuration can put a file into another export: a directory is found by its parents then, and handles of other files
//! from before are refused.

mod recorded;
mod terms;

use crate::caller::Seen;
use crate::config::KernelLayout;
use crate::handle::Named;
use bytes::Bytes;
use ipnet::IpNet;
use layout::kinds::native;
use layout::{Policy, Settings};
use meta::{Embedded, Namespace};
use nfs::exports::{Place, Terms, View};
use nfs::fs::DirPage;
pub(crate) use recorded::keep;
use recorded::{Recorded, Rooted};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use types::{Attrs, Cred, DirEntry, FileId, FileKind, Fsid, Status};

/// Most exports of one mgr: a [`View`] has a bit for each.
pub(crate) const EXPORTS_MAX: usize = 64;
/// Cookies of a directory on the way begin here: clients take the lower ones for something else (RFC 8881 §18.23).
const FIRST_COOKIE: u64 = 3;

/// One export to some clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    /// The names from the root down to it.
    pub(crate) path: Vec<Bytes>,
    /// To whom; empty: everybody.
    pub(crate) clients: Vec<IpNet>,
    /// Whether those of other machines must come from a port that only the superuser there may use.
    pub(crate) privileged_ports: bool,
    pub(crate) terms: Terms,
    /// How files are laid out where no directory says otherwise.
    pub(crate) policy: Policy,
    /// What of that clients are told: all that is not so by itself.
    pub(crate) told: Settings,
    /// The layout that kernels are offered.
    pub(crate) layout: KernelLayout,
    /// Below which length files of kernels are read and written at the mgr; `None`: below their stripe unit.
    pub(crate) mds_threshold: Option<u64>,
}

impl Rule {
    /// Layout types offered. Each client takes the one that it knows: those of kernels know no native one, and would take any
    /// of two others.
    pub(crate) fn layout_types(&self) -> Vec<u32> {
        // Nothing has a layout on the way to an export; telling of one is no harm, and lets our own client mount there.
        std::iter::once(native::KIND).chain(self.layout.kind()).collect()
    }

    /// Whether layouts of this type are given.
    pub(crate) fn offers(&self, kind: u32) -> bool {
        kind == native::KIND || self.layout.kind() == Some(kind)
    }
}

/// Where the paths of the rules lead at present.
#[derive(Debug, Default)]
struct Found {
    /// The directory of each rule.
    roots: Vec<Option<FileId>>,
    /// By directory: names that lead to exports, what they name, and the rules they lead to.
    ways: HashMap<FileId, BTreeMap<Bytes, (FileId, u64)>>,
    /// By directory: names that are steps of a path, whether there is such a directory or not.
    steps: HashMap<FileId, HashSet<Bytes>>,
}

impl Found {
    /// The first rule for a directory among those seen.
    fn rule(&self, root: FileId, view: View) -> Option<u16> {
        let of_root = |n: &u16| self.roots[usize::from(*n)] == Some(root) && view.has(*n);
        (0..self.roots.len() as u16).find(of_root)
    }

    fn is_root(&self, dir: FileId) -> bool {
        self.roots.contains(&Some(dir))
    }

    /// Whether a name is that of an export's directory, or of one on the way to it.
    fn is_way(&self, (dir, name): (FileId, &[u8])) -> bool {
        self.ways.get(&dir).is_some_and(|names| names.contains_key(name))
    }

    fn is_step(&self, (dir, name): (FileId, &[u8])) -> bool {
        self.steps.get(&dir).is_some_and(|names| names.contains(name))
    }

    /// Whether a directory is on the way to something that is seen.
    fn leads(&self, dir: FileId, view: View) -> bool {
        dir == FileId::ROOT || self.ways.get(&dir).is_some_and(|names| names.values().any(|(_, to)| to & view.0 != 0))
    }
}

/// The exports of a mgr.
#[derive(Debug)]
pub(crate) struct Exports {
    rules: Vec<Rule>,
    /// What holds on the way.
    outside: Rule,
    /// Whether there is the root alone.
    only_root: bool,
    /// Whether everybody sees everything.
    open: bool,
    namespace: Arc<Namespace<Embedded>>,
    /// What was recorded of the exports when this mgr started.
    recorded: Recorded,
    found: RwLock<Found>,
    /// Held from the first lookup until what was found is stored: an older finding must not replace a newer one.
    looking: Mutex<()>,
}

impl Exports {
    /// At least one rule, at most [`EXPORTS_MAX`]. It is on record before anybody is answered. `is_new`: the store was never served before.
    ///
    /// # Errors
    /// The metadata store fails.
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
            told: Settings::default(),
            layout: KernelLayout::None,
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
            tracing::warn!(path = %shown(rule), "there is no such directory to export yet");
        }
        Ok(exports)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Found> {
        self.found.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the paths of all rules once more.
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

    /// The exports that are there.
    fn rooted<'a>(&'a self, found: &Found) -> Vec<Rooted<'a>> {
        let all = self.rules.iter().zip(&found.roots);
        all.filter_map(|(rule, root)| Some((&rule.path[..], (*root)?))).collect()
    }

    /// A name in this directory was looked up, or made: an export may begin there that was not there before. Before anybody is told of what is there.
    pub(crate) fn passed(&self, dir: FileId) {
        // Those that are there stay.
        let may_begin = |found: &Found| found.steps.contains_key(&dir) && found.roots.contains(&None);
        if !self.only_root && may_begin(&self.read()) {
            self.look();
        }
    }

    /// Refuses to move or remove the directory of an export or one on the way to it, and to put something (`into`) there, for every client.
    ///
    /// # Errors
    /// `XDev`, as on a mount point.
    pub(crate) fn may_move(&self, name: (FileId, &Bytes), into: bool) -> Result<(), Status> {
        let name = (name.0, &name.1[..]);
        if self.only_root || !self.read().is_step(name) {
            return Ok(());
        }
        self.look();
        let found = self.read();
        if into || found.is_way(name) { Err(Status::XDev) } else { Ok(()) }
    }

    /// The directory that the innermost export begins at that a directory is in, whoever sees it; none outside of all.
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

    /// The place of what is reached in a place now.
    pub(crate) fn reached_now(&self, place: Place) -> Place {
        Place { epoch: self.recorded.good_from(place.root), ..place }
    }

    /// What a peer sees. Those of this machine that came by a Unix socket count as 127.0.0.1.
    pub(crate) fn view(&self, peer: Seen) -> View {
        if self.open {
            return View::ALL;
        }
        self.view_of(peer, |rule| peer.privileged || !rule.privileged_ports)
    }

    /// Whether a peer would see something if it came from a privileged port.
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

    /// What holds at a place.
    pub(crate) fn rule(&self, place: Place) -> &Rule {
        self.rules.get(usize::from(place.terms)).unwrap_or(&self.outside)
    }

    /// What holds in the export of everything; `None` if the caller does not see that.
    pub(crate) fn of_everything(&self, view: View) -> Option<&Rule> {
        self.read().rule(FileId::ROOT, view).map(|n| &self.rules[usize::from(n)])
    }

    /// The place of the root directory.
    pub(crate) fn root(&self, view: View) -> Place {
        if !self.only_root {
            self.look();
        }
        self.export(FileId::ROOT, view).unwrap_or(Place::OUTSIDE)
    }

    /// The place of an export's directory, if the caller sees it.
    fn export(&self, root: FileId, view: View) -> Option<Place> {
        let epoch = self.recorded.good_from(root);
        self.read().rule(root, view).map(|terms| Place { root, terms, epoch })
    }

    /// See [`nfs::fs::FileSystem::descend`].
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

    /// See [`nfs::fs::FileSystem::ascend`]: the export that the parent of `dir` is in, if `dir` is where one begins. Where the caller does not see that, the
    /// parent is nothing but on the way.
    pub(crate) fn ascend(&self, place: Place, view: View, dir: FileId) -> Result<Place, Status> {
        if dir != place.root || dir == FileId::ROOT {
            return Ok(self.reached_now(place));
        }
        let parent = self.namespace.lookup_parent(&Cred::root(), dir)?.id;
        let above = self.innermost(parent)?.and_then(|root| self.export(root, view));
        Ok(above.unwrap_or(Place::OUTSIDE))
    }

    /// The place that a filehandle names, for a caller who hands it in.
    ///
    /// # Errors
    /// `Access` if the caller does not see the export; `Stale` if there is no such export, or the file is in another one.
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

    /// The place of a file that was reached in an export in this epoch, if it is there still.
    fn within(&self, place: Place, file: FileId, epoch: u32) -> Result<Place, Status> {
        let place = Place { epoch, ..place };
        if self.only_root {
            return Ok(place);
        }
        let is_there = match self.namespace.getattr(file).map(|attrs| attrs.kind) {
            Ok(FileKind::Directory) => self.innermost(file)? == Some(place.root),
            Ok(_) => self.recorded.good_from(place.root) <= epoch,
            // The operation says so.
            Err(_) => true,
        };
        if is_there { Ok(place) } else { Err(Status::Stale) }
    }

    /// What a name on the way leads to.
    pub(crate) fn lookup(&self, view: View, dir: FileId, name: &Bytes) -> Result<Attrs, Status> {
        self.look();
        let child = self.read().ways.get(&dir).and_then(|names| names.get(name)).copied();
        let (child, _) = child.filter(|(_, to)| to & view.0 != 0).ok_or(Status::NoEnt)?;
        self.namespace.getattr(child)
    }

    /// The names on the way from a directory.
    pub(crate) fn readdir(&self, view: View, dir: FileId, after: u64) -> Result<DirPage, Status> {
        self.look();
        let names = self.read().ways.get(&dir).cloned().unwrap_or_default();
        let mut entries = Vec::new();
        for (name, (child, to)) in names.into_iter().filter(|(_, (_, to))| to & view.0 != 0) {
            // One rule leads by one name only, so that this is the same for as long as the mgr runs.
            let cookie = FIRST_COOKIE + u64::from(to.trailing_zeros());
            if cookie > after {
                entries.push(DirEntry { name, cookie, attrs: self.namespace.getattr(child)? });
            }
        }
        entries.sort_by_key(|entry| entry.cookie);
        Ok(DirPage { entries, eof: true })
    }

    /// The `fsid` attribute of a place: that of the file system for the export of everything, for others one that is made
    /// of it.
    pub(crate) fn fsid(&self, fsid: Fsid, place: Place) -> Fsid {
        if place.root == FileId::ROOT {
            return fsid;
        }
        let mut id = fsid.0;
        // Odd, so that no two directories have the same; and the way to exports, number 0, has its own.
        let number = (place.root.0.wrapping_mul(2) | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        id[8..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, with)| *byte ^= with);
        Fsid(id)
    }

    /// Every rule with its path, for display.
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
