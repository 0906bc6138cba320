//! One operation at work: reads through a view, gathers expectations and changes into a batch.

use crate::ChangeInfo;
use crate::engine::{Batch, Expect, Key, Merged, Survey, Value, View, Walk, Write};
use crate::schema::{self, Body, CookieKey, Core, Delta, Dentry, Record, Tail, TailDelta};
use bytes::Bytes;
use types::{Attrs, Cred, FileId, FileKind, Status, Timestamp, limits};

/// What an operation works with.
pub(crate) struct Tx<'a> {
    view: &'a dyn View,
    cookies: &'a CookieKey,
    /// What is added to the change attributes of records to tell them.
    since: u64,
    /// Who asks.
    pub(crate) cred: &'a Cred,
    /// The time of the operation.
    pub(crate) now: Timestamp,
    batch: Batch,
    merges: usize,
}

/// A change of a [`Tail`] inside the batch being built: its place among the merges.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Touch {
    /// Nothing changes; the change attribute is this.
    None(u64),
    /// The merge with this index changes it.
    Merge(usize),
}

/// Takes a key and its value; an error ends the scan.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<Walk, Status> + 'v;

/// What came of a batch, to be looked up by [`Touch`].
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) merged: Vec<Merged>,
    /// What is added to the change attributes of records to tell them.
    pub(crate) since: u64,
}

impl Settled {
    fn tails(&self, index: usize) -> Result<(Tail, Tail), Status> {
        let (before, after) = self.merged.get(index).ok_or(Status::ServerFault)?;
        let before = before.clone().ok_or(Status::ServerFault)?;
        let told = |value| Tail::from_value(value).map(|tail| tail.told(self.since));
        Ok((told(before)?, told(after.clone())?))
    }

    /// The change attribute around the batch.
    pub(crate) fn change(&self, touch: Touch) -> Result<ChangeInfo, Status> {
        Ok(match touch {
            Touch::None(change) => ChangeInfo { before: change, after: change, atomic: true },
            Touch::Merge(index) => {
                let (before, after) = self.tails(index)?;
                ChangeInfo { before: before.change, after: after.change, atomic: true }
            }
        })
    }

    /// The attributes of `id` before and after the batch, given the other half before and after.
    pub(crate) fn attrs(&self, id: FileId, cores: (&Core, &Core), index: usize) -> Result<(Attrs, Attrs), Status> {
        let (before, after) = self.tails(index)?;
        Ok((cores.0.attrs(id, &before), cores.1.attrs(id, &after)))
    }
}

/// A name found in a directory, with where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) entry: Dentry,
    pub(crate) key: Key,
    value: Value,
}

/// What is known of a name: the entry if it is there, and all entries whose names hash alike.
pub(crate) struct Place {
    pub(crate) found: Option<Found>,
    alike: Vec<(Key, Value)>,
    first: u64,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(
        view: &'a dyn View,
        (cookies, since): (&'a CookieKey, u64),
        cred: &'a Cred,
        now: Timestamp,
    ) -> Self {
        Tx { view, cookies, since, cred, now, batch: Batch { durable: true, ..Batch::default() }, merges: 0 }
    }

    /// The batch that was built.
    pub(crate) fn into_batch(self) -> Batch {
        self.batch
    }

    /// Marks the batch as removal or recovery: it frees space in the end, or removal may wait for it and it adds no lasting
    /// record. A store with little free space still accepts it.
    pub(crate) fn frees(&mut self) {
        self.batch.frees = true;
    }

    /// Marks the batch as one whose answer need not wait for the disk.
    pub(crate) fn not_durable(&mut self) {
        self.batch.durable = false;
    }

    fn record<R: Record>(&self, key: &[u8]) -> Result<Option<R>, Status> {
        self.view.get(key)?.map(R::from_value).transpose()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Value>, Status> {
        Ok(self.view.get(key)?)
    }

    /// Shows up to `limit` entries of the range to `visit`, which may stop by an error; whether the range ended.
    pub(crate) fn scan(&self, from: &[u8], to: &[u8], limit: usize, visit: &mut Visit<'_>) -> Result<bool, Status> {
        let mut result = Ok(());
        let rest = self.view.scan(from..to, limit, &mut |key, value| match visit(key, value) {
            Ok(walk) => walk,
            Err(status) => {
                result = Err(status);
                Walk::Stop
            }
        })?;
        result.map(|()| rest.is_none())
    }

    /// As [`Self::scan`], but damaged records are shown, without their values.
    pub(crate) fn survey(&self, from: &[u8], to: &[u8], limit: usize, visit: &mut Survey<'_>) -> Result<bool, Status> {
        Ok(self.view.survey(from..to, limit, visit)?.is_none())
    }

    /// The cookies that a name may have.
    pub(crate) fn bucket(&self, name: &[u8]) -> std::ops::Range<u64> {
        schema::bucket(self.cookies, name)
    }

    /// The seldom changing half of a file that may have changed by the time of the commit; `Stale` if it is gone.
    pub(crate) fn core(&self, id: FileId) -> Result<Core, Status> {
        self.record(&schema::core_key(id))?.ok_or(Status::Stale)
    }

    /// The seldom changing half of a file; the batch conflicts if that is another one by then. `Stale` if it is gone.
    pub(crate) fn rely_on(&mut self, id: FileId) -> Result<Core, Status> {
        let key = schema::core_key(id);
        let value = self.view.get(&key)?.ok_or(Status::Stale)?;
        self.batch.expects.push(Expect::Reads(key, value.clone()));
        Core::from_value(value)
    }

    /// As [`Self::rely_on`] for something that must be a directory, else `NotDir`.
    pub(crate) fn rely_on_dir(&mut self, id: FileId) -> Result<Core, Status> {
        let core = self.rely_on(id)?;
        if core.kind() == FileKind::Directory { Ok(core) } else { Err(Status::NotDir) }
    }

    /// The often changing half of a file, to be told.
    pub(crate) fn tail(&self, id: FileId) -> Result<Tail, Status> {
        let tail: Tail = self.record(&schema::tail_key(id))?.ok_or(Status::Corrupt)?;
        Ok(self.told(tail))
    }

    /// A half that a record has, as it is told.
    pub(crate) fn told(&self, tail: Tail) -> Tail {
        tail.told(self.since)
    }

    /// The often changing half of a file, to be told; the batch conflicts if that is another one by then.
    pub(crate) fn rely_on_tail(&mut self, id: FileId) -> Result<Tail, Status> {
        let key = schema::tail_key(id);
        let value = self.view.get(&key)?.ok_or(Status::Corrupt)?;
        self.batch.expects.push(Expect::Reads(key, value.clone()));
        Ok(self.told(Tail::from_value(value)?))
    }

    /// The attributes of a file.
    pub(crate) fn attrs(&self, id: FileId) -> Result<Attrs, Status> {
        Ok(self.core(id)?.attrs(id, &self.tail(id)?))
    }

    /// Looks `name` up in a directory.
    pub(crate) fn place(&self, dir: FileId, name: &[u8]) -> Result<Place, Status> {
        let bucket = schema::bucket(self.cookies, name);
        let (from, to) = (schema::dentry_key(dir, bucket.start), schema::dentry_key(dir, bucket.end));
        let mut place = Place { found: None, alike: Vec::new(), first: bucket.start };
        self.scan(&from, &to, usize::MAX, &mut |key, value| {
            let value = Bytes::copy_from_slice(value);
            let entry = Dentry::from_value(value.clone())?;
            if entry.name == name {
                place.found = Some(Found { entry, key: key.to_vec(), value: value.clone() });
            }
            place.alike.push((key.to_vec(), value));
            Ok(Walk::On)
        })?;
        Ok(place)
    }

    /// Makes the batch conflict if the name stands for something else by then.
    pub(crate) fn rely_on_found(&mut self, found: &Found) {
        self.batch.expects.push(Expect::Reads(found.key.clone(), found.value.clone()));
    }

    /// Looks `name` up, `NoEnt` if it is not there; the batch conflicts if it stands for something else by then.
    pub(crate) fn rely_on_name(&mut self, dir: FileId, name: &[u8]) -> Result<Found, Status> {
        let found = self.place(dir, name)?.found.ok_or(Status::NoEnt)?;
        self.rely_on_found(&found);
        Ok(found)
    }

    /// Adds a name that `place` says is absent; the batch conflicts if it is there by then.
    pub(crate) fn add_name(&mut self, dir: FileId, place: &Place, entry: &Dentry) -> Result<(), Status> {
        let key_of = |index| schema::dentry_key(dir, place.first + index);
        let taken = |key: &Key| place.alike.iter().any(|(taken, _)| taken == key);
        let key = (0..256).map(key_of).find(|key| !taken(key)).ok_or(Status::NoSpc)?;
        if place.alike.is_empty() {
            self.batch.expects.push(Expect::NoneIn(key_of(0), key_of(256)));
        } else {
            // All who add one of these names pick the first free index; whoever else got in between took it, or
            // changed one of the others.
            let alike = place.alike.iter().map(|(key, value)| Expect::Reads(key.clone(), value.clone()));
            self.batch.expects.extend(alike);
            self.batch.expects.push(Expect::Absent(key.clone()));
        }
        self.put(key, entry.to_value());
        Ok(())
    }

    /// Lets the name `found` stand for another file.
    pub(crate) fn redirect(&mut self, found: &Found, child: FileId, kind: FileKind) {
        let entry = Dentry { child, kind, name: found.entry.name.clone() };
        self.put(found.key.clone(), entry.to_value());
    }

    pub(crate) fn expect(&mut self, expect: Expect) {
        self.batch.expects.push(expect);
    }

    pub(crate) fn put(&mut self, key: Key, value: Value) {
        self.batch.writes.push((key, Write::Put(value)));
    }

    pub(crate) fn delete(&mut self, key: Key) {
        self.batch.writes.push((key, Write::Delete));
    }

    pub(crate) fn put_core(&mut self, id: FileId, core: &Core) {
        self.put(schema::core_key(id), core.to_value());
    }

    fn merge(&mut self, key: Key, delta: Delta) -> usize {
        self.batch.writes.push((key, Write::Merge(delta.to_bytes())));
        self.merges += 1;
        self.merges - 1
    }

    /// Changes the often changing half of a file, whatever it is by then.
    pub(crate) fn change_tail(&mut self, id: FileId, delta: TailDelta) -> usize {
        self.merge(schema::tail_key(id), Delta::Tail(delta))
    }

    /// Changes the change time of a file.
    pub(crate) fn touch(&mut self, id: FileId) -> usize {
        self.change_tail(id, TailDelta { ctime: Some(self.now), ..TailDelta::default() })
    }

    /// Changes a directory that gains or loses names.
    pub(crate) fn change_dir(&mut self, dir: FileId, entries: i32, subdirs: i32) -> Touch {
        let size = schema::SizeDelta::Entries(entries);
        let now = Some(self.now);
        let delta = TailDelta { size, subdirs, mtime: now, ctime: now, ..TailDelta::default() };
        Touch::Merge(self.change_tail(dir, delta))
    }

    /// Counts files that were made or went.
    pub(crate) fn count_files(&mut self, n: i64) {
        self.merge(schema::COUNTS.to_vec(), Delta::Files(n));
    }

    /// Writes a new inode.
    pub(crate) fn put_inode(&mut self, id: FileId, core: &Core, tail: &Tail) {
        self.put_core(id, core);
        self.put(schema::tail_key(id), tail.to_value());
        self.count_files(1);
    }

    /// Deletes an inode with its extended attributes, which are in the view as its core says.
    pub(crate) fn delete_inode(&mut self, id: FileId, core: &Core) -> Result<(), Status> {
        self.delete(schema::core_key(id));
        self.delete(schema::tail_key(id));
        if matches!(&core.body, Body::Regular { layout: Some(layout), .. } if !layout.is_final()) {
            self.delete(schema::bytes_key(id));
        }
        if core.xattrs.count > 0 {
            let mut keys = Vec::new();
            let (from, to) = (schema::xattr_key(id, b""), schema::xattrs_end(id));
            self.scan(&from, &to, limits::XATTRS_MAX, &mut |key, _| {
                keys.push(key.to_vec());
                Ok(Walk::On)
            })?;
            keys.into_iter().for_each(|key| self.delete(key));
        }
        self.count_files(-1);
        Ok(())
    }

    /// The parent of a directory, `NotDir` for anything else.
    pub(crate) fn parent_in(core: &Core) -> Result<FileId, Status> {
        match core.body {
            Body::Directory { parent } => Ok(parent),
            _ => Err(Status::NotDir),
        }
    }
}
