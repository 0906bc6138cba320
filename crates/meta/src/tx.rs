//! The transaction of one operation, which reads through a view and collects expectations and changes into a batch.

use crate::ChangeInfo;
use crate::engine::{Batch, Expect, Key, Merged, Survey, Value, View, Walk, Write};
use crate::schema::{self, Body, CookieKey, Core, Delta, Dentry, Intent, Record, Tail, TailDelta};
use bytes::Bytes;
use types::{Attrs, Cred, FileId, FileKind, Generation, Status, Timestamp, limits};

/// The view, the caller and the batch of one operation.
pub(crate) struct Tx<'a> {
    view: &'a dyn View,
    cookies: &'a CookieKey,
    /// Added to the change attribute of a record when the operation reports it.
    since: u64,
    /// Credentials of the caller.
    pub(crate) cred: &'a Cred,
    /// The time of the operation.
    pub(crate) now: Timestamp,
    batch: Batch,
    merges: usize,
}

/// How an operation changes a [`Tail`] in the batch that is being built.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Touch {
    /// Nothing changes; this is the change attribute.
    None(u64),
    /// The merge with this index changes the tail.
    Merge(usize),
}

/// Receives a key and its value; an error ends the scan.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<Walk, Status> + 'v;

/// Result of a committed batch, looked up by [`Touch`].
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) merged: Vec<Merged>,
    /// Added to the change attribute of a record when the answer reports it.
    pub(crate) since: u64,
}

impl Settled {
    fn tails(&self, index: usize) -> Result<(Tail, Tail), Status> {
        let (before, after) = self.merged.get(index).ok_or(Status::ServerFault)?;
        let before = before.clone().ok_or(Status::ServerFault)?;
        let told = |value| Tail::from_value(value).map(|tail| tail.told(self.since));
        Ok((told(before)?, told(after.clone())?))
    }

    /// Returns the change attribute before and after the batch.
    pub(crate) fn change(&self, touch: Touch) -> Result<ChangeInfo, Status> {
        Ok(match touch {
            Touch::None(change) => ChangeInfo { before: change, after: change, atomic: true },
            Touch::Merge(index) => {
                let (before, after) = self.tails(index)?;
                ChangeInfo { before: before.change, after: after.change, atomic: true }
            }
        })
    }

    /// Returns the attributes of `id` before and after the batch, given the core before and after.
    pub(crate) fn attrs(&self, id: FileId, cores: (&Core, &Core), index: usize) -> Result<(Attrs, Attrs), Status> {
        let (before, after) = self.tails(index)?;
        Ok((cores.0.attrs(id, &before), cores.1.attrs(id, &after)))
    }
}

/// A name found in a directory, with its record.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) entry: Dentry,
    pub(crate) key: Key,
    value: Value,
}

/// The entry of a name, if it exists, and all entries whose names have the same hash.
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

    /// Returns the batch that was built.
    pub(crate) fn into_batch(self) -> Batch {
        self.batch
    }

    /// Marks the batch as removal or recovery. Such a batch frees space in the end, or a removal may wait for it and it
    /// adds no lasting record. A store with little free space still accepts it.
    pub(crate) fn frees(&mut self) {
        self.batch.frees = true;
    }

    /// Marks the batch as one whose answer does not wait for the disk.
    pub(crate) fn not_durable(&mut self) {
        self.batch.durable = false;
    }

    fn record<R: Record>(&self, key: &[u8]) -> Result<Option<R>, Status> {
        self.view.get(key)?.map(R::from_value).transpose()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Value>, Status> {
        Ok(self.view.get(key)?)
    }

    /// Passes up to `limit` entries of the range to `visit`, which may stop the scan with an error. Returns whether the
    /// range ended.
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

    /// As [`Self::scan`], but also passes damaged records, without their values.
    pub(crate) fn survey(&self, from: &[u8], to: &[u8], limit: usize, visit: &mut Survey<'_>) -> Result<bool, Status> {
        Ok(self.view.survey(from..to, limit, visit)?.is_none())
    }

    /// Returns the cookies that a name may have.
    pub(crate) fn bucket(&self, name: &[u8]) -> std::ops::Range<u64> {
        schema::bucket(self.cookies, name)
    }

    /// Returns the core of a file, which another batch may change before the commit; `Stale` if the file is gone.
    pub(crate) fn core(&self, id: FileId) -> Result<Core, Status> {
        self.record(&schema::core_key(id))?.ok_or(Status::Stale)
    }

    /// Returns the core of a file; `Stale` if the file is gone. The batch conflicts if the core has changed at the
    /// commit.
    pub(crate) fn rely_on(&mut self, id: FileId) -> Result<Core, Status> {
        let key = schema::core_key(id);
        let value = self.view.get(&key)?.ok_or(Status::Stale)?;
        self.batch.expects.push(Expect::Reads(key, value.clone()));
        Core::from_value(value)
    }

    /// As [`Self::rely_on`], but `NotDir` if the file is no directory.
    pub(crate) fn rely_on_dir(&mut self, id: FileId) -> Result<Core, Status> {
        let core = self.rely_on(id)?;
        if core.kind() == FileKind::Directory { Ok(core) } else { Err(Status::NotDir) }
    }

    /// Returns the tail of a file, with the change attribute to report.
    pub(crate) fn tail(&self, id: FileId) -> Result<Tail, Status> {
        let tail: Tail = self.record(&schema::tail_key(id))?.ok_or(Status::Corrupt)?;
        Ok(self.told(tail))
    }

    /// Returns a stored tail with the change attribute to report.
    pub(crate) fn told(&self, tail: Tail) -> Tail {
        tail.told(self.since)
    }

    /// Returns the tail of a file, with the change attribute to report. The batch conflicts if the tail has changed at
    /// the commit.
    pub(crate) fn rely_on_tail(&mut self, id: FileId) -> Result<Tail, Status> {
        let key = schema::tail_key(id);
        let value = self.view.get(&key)?.ok_or(Status::Corrupt)?;
        self.batch.expects.push(Expect::Reads(key, value.clone()));
        Ok(self.told(Tail::from_value(value)?))
    }

    /// Returns the attributes of a file.
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

    /// Makes the batch conflict if the directory entry has changed at the commit.
    pub(crate) fn rely_on_found(&mut self, found: &Found) {
        self.batch.expects.push(Expect::Reads(found.key.clone(), found.value.clone()));
    }

    /// Looks `name` up; `NoEnt` if it does not exist. The batch conflicts if the directory entry has changed at the
    /// commit.
    pub(crate) fn rely_on_name(&mut self, dir: FileId, name: &[u8]) -> Result<Found, Status> {
        let found = self.place(dir, name)?.found.ok_or(Status::NoEnt)?;
        self.rely_on_found(&found);
        Ok(found)
    }

    /// Adds a name that `place` reports as absent. The batch conflicts if the name exists at the commit.
    pub(crate) fn add_name(&mut self, dir: FileId, place: &Place, entry: &Dentry) -> Result<(), Status> {
        let key_of = |index| schema::dentry_key(dir, place.first + index);
        let taken = |key: &Key| place.alike.iter().any(|(taken, _)| taken == key);
        let key = (0..256).map(key_of).find(|key| !taken(key)).ok_or(Status::NoSpc)?;
        if place.alike.is_empty() {
            self.batch.expects.push(Expect::NoneIn(key_of(0), key_of(256)));
        } else {
            // All operations that add one of these names pick the first free index. A concurrent operation therefore
            // took that index or changed one of the other entries.
            let alike = place.alike.iter().map(|(key, value)| Expect::Reads(key.clone(), value.clone()));
            self.batch.expects.extend(alike);
            self.batch.expects.push(Expect::Absent(key.clone()));
        }
        self.put(key, entry.to_value());
        Ok(())
    }

    /// Makes the name `found` refer to another file.
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

    /// Raises the generation in `core`, which the caller writes, and adds the intent to inform the iods.
    pub(crate) fn raise_generation(&mut self, id: FileId, core: &mut Core) -> Result<Generation, Status> {
        let Body::Regular { generation, .. } = &mut core.body else { return Err(Status::WrongType) };
        let raised = Generation(generation.0.checked_add(1).ok_or(Status::NoSpc)?);
        *generation = raised;
        let told = Intent::Fence(raised);
        self.put(schema::intent_key(id, told.kind()), told.to_value());
        Ok(raised)
    }

    fn merge(&mut self, key: Key, delta: Delta) -> usize {
        self.batch.writes.push((key, Write::Merge(delta.to_bytes())));
        self.merges += 1;
        self.merges - 1
    }

    /// Changes the tail of a file, whatever value the tail has at the commit.
    pub(crate) fn change_tail(&mut self, id: FileId, delta: TailDelta) -> usize {
        self.merge(schema::tail_key(id), Delta::Tail(delta))
    }

    /// Sets the change time of a file.
    pub(crate) fn touch(&mut self, id: FileId) -> usize {
        self.change_tail(id, TailDelta { ctime: Some(self.now), ..TailDelta::default() })
    }

    /// Changes the tail of a directory that gains or loses names.
    pub(crate) fn change_dir(&mut self, dir: FileId, entries: i32, subdirs: i32) -> Touch {
        let size = schema::SizeDelta::Entries(entries);
        let now = Some(self.now);
        let delta = TailDelta { size, subdirs, mtime: now, ctime: now, ..TailDelta::default() };
        Touch::Merge(self.change_tail(dir, delta))
    }

    /// Adds `n` to the number of files; `n` is negative for deleted files.
    pub(crate) fn count_files(&mut self, n: i64) {
        self.merge(schema::COUNTS.to_vec(), Delta::Files(n));
    }

    /// Writes a new inode.
    pub(crate) fn put_inode(&mut self, id: FileId, core: &Core, tail: &Tail) {
        self.put_core(id, core);
        self.put(schema::tail_key(id), tail.to_value());
        self.count_files(1);
    }

    /// Deletes an inode with its extended attributes. The view has as many of them as the core says.
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

    /// Returns the parent of a directory; `NotDir` for other files.
    pub(crate) fn parent_in(core: &Core) -> Result<FileId, Status> {
        match core.body {
            Body::Directory { parent } => Ok(parent),
            _ => Err(Status::NotDir),
        }
    }
}
