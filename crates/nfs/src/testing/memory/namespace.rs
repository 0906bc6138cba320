//! Namespace of the in-memory file system: lookup, creation, renaming and removal of names.

use super::{Content, Inner, access};
use crate::fs::*;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use types::{Attrs, DirEntry, FileId, FileKind, Renaming, SetAttrs, Status};

fn directory() -> Content {
    Content::Entries { by_cookie: BTreeMap::new(), by_name: HashMap::new(), parent: FileId::ROOT }
}

impl Inner {
    fn check_dir(&self, dir: FileId) -> Result<()> {
        match self.get(dir)?.attrs.kind {
            FileKind::Directory => Ok(()),
            FileKind::Symlink => Err(Status::Symlink),
            _ => Err(Status::NotDir),
        }
    }

    fn find(&self, dir: FileId, name: &Bytes) -> Result<Option<FileId>> {
        self.check_dir(dir)?;
        types::name::check(name)?;
        let Content::Entries { by_cookie, by_name, .. } = &self.get(dir)?.content else { return Err(Status::NotDir) };
        Ok(by_name.get(name).and_then(|cookie| by_cookie.get(cookie)).map(|(_, id)| *id))
    }

    /// Looks up a name that an operation is about to change, and checks the permission to change the directory.
    fn find_to_change(&self, ctx: &Ctx, dir: FileId, name: &Bytes) -> Result<Option<FileId>> {
        let found = self.find(dir, name)?;
        self.allowed(ctx, dir, access::MODIFY | access::LOOKUP)?;
        Ok(found)
    }

    fn insert(&mut self, ctx: &Ctx, dir: FileId, name: &Bytes, file: FileId) -> Result<Change> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let Content::Entries { by_cookie, by_name, .. } = &mut self.get_mut(dir)?.content else {
            return Err(Status::NotDir);
        };
        by_cookie.insert(cookie, (name.clone(), file));
        by_name.insert(name.clone(), cookie);
        if let Content::Entries { parent, .. } = &mut self.get_mut(file)?.content {
            *parent = dir;
            self.get_mut(dir)?.attrs.nlink += 1;
        }
        self.touch(dir, ctx.now, true)
    }

    fn take(&mut self, ctx: &Ctx, dir: FileId, name: &Bytes) -> Result<Change> {
        let Content::Entries { by_cookie, by_name, .. } = &mut self.get_mut(dir)?.content else {
            return Err(Status::NotDir);
        };
        let taken = by_name.remove(name).and_then(|cookie| by_cookie.remove(&cookie)).ok_or(Status::NoEnt)?;
        if self.get(taken.1)?.attrs.kind == FileKind::Directory {
            self.get_mut(dir)?.attrs.nlink -= 1;
        }
        self.touch(dir, ctx.now, true)
    }

    /// Decrements the link count of `file`. Returns whether the file has no more links.
    fn unlinked(&mut self, ctx: &Ctx, file: FileId) -> Result<bool> {
        let inode = self.get_mut(file)?;
        inode.attrs.nlink -= if inode.attrs.kind == FileKind::Directory { 2 } else { 1 };
        let orphaned = inode.attrs.nlink == 0;
        self.touch(file, ctx.now, false)?;
        Ok(orphaned)
    }

    fn check_empty(&self, file: FileId) -> Result<()> {
        match &self.get(file)?.content {
            Content::Entries { by_cookie, .. } if !by_cookie.is_empty() => Err(Status::NotEmpty),
            _ => Ok(()),
        }
    }

    pub(super) fn lookup(&self, ctx: &Ctx, dir: FileId, name: &Bytes) -> Result<Attrs> {
        let found = self.find(dir, name)?;
        self.allowed(ctx, dir, access::LOOKUP)?;
        Ok(self.get(found.ok_or(Status::NoEnt)?)?.attrs)
    }

    pub(super) fn lookup_parent(&self, ctx: &Ctx, dir: FileId) -> Result<Attrs> {
        self.check_dir(dir)?;
        self.allowed(ctx, dir, access::LOOKUP)?;
        match &self.get(dir)?.content {
            Content::Entries { parent, .. } if dir != FileId::ROOT => Ok(self.get(*parent)?.attrs),
            _ => Err(Status::NoEnt),
        }
    }

    pub(super) fn readdir(&self, ctx: &Ctx, dir: FileId, after: u64, max: usize) -> Result<DirPage> {
        self.check_dir(dir)?;
        self.allowed(ctx, dir, access::READ)?;
        let Content::Entries { by_cookie, .. } = &self.get(dir)?.content else { return Err(Status::NotDir) };
        let mut rest = by_cookie.range(after.saturating_add(1)..);
        let entries = rest.by_ref().take(max.max(1)).map(|(cookie, (name, id))| {
            Ok(DirEntry { name: name.clone(), cookie: *cookie, attrs: self.get(*id)?.attrs })
        });
        let entries = entries.collect::<Result<Vec<_>>>()?;
        Ok(DirPage { eof: rest.next().is_none(), entries })
    }

    pub(super) fn create(
        &mut self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        kind: CreateKind,
        set: SetAttrs,
    ) -> Result<Created> {
        if self.find_to_change(ctx, dir, name)?.is_some() {
            return Err(Status::Exist);
        }
        let (kind, rdev, content) = match kind {
            CreateKind::Directory => (FileKind::Directory, (0, 0), directory()),
            CreateKind::Symlink(target) => (FileKind::Symlink, (0, 0), Content::Target(target)),
            CreateKind::Fifo => (FileKind::Fifo, (0, 0), Content::Nothing),
            CreateKind::Socket => (FileKind::Socket, (0, 0), Content::Nothing),
            CreateKind::Block(major, minor) => (FileKind::Block, (major, minor), Content::Nothing),
            CreateKind::Char(major, minor) => (FileKind::Char, (major, minor), Content::Nothing),
        };
        let attrs = self.add(ctx, kind, rdev, content, set);
        let change = self.insert(ctx, dir, name, attrs.id)?;
        Ok(Created { attrs, change })
    }

    pub(super) fn open_create(
        &mut self,
        ctx: &Ctx,
        dir: FileId,
        name: &Bytes,
        how: OpenHow,
        set: SetAttrs,
    ) -> Result<Opened> {
        if let Some(found) = self.find(dir, name)? {
            self.allowed(ctx, dir, access::LOOKUP)?;
            let inode = self.get(found)?;
            let again = matches!(how, OpenHow::Exclusive(verifier) if inode.verifier == Some(verifier));
            if how != OpenHow::Unchecked && !again {
                return Err(Status::Exist);
            }
            let change = self.get(dir)?.attrs.change;
            let change = Change { before: change, after: change, atomic: true };
            return Ok(Opened { attrs: inode.attrs, created: again, change });
        }
        self.find_to_change(ctx, dir, name)?;
        if set.size.is_some_and(|size| size > super::SIZE_MAX) {
            return Err(Status::FBig);
        }
        let bytes = vec![0; set.size.unwrap_or(0) as usize];
        let id = self.add(ctx, FileKind::Regular, (0, 0), Content::Bytes(bytes), set).id;
        if let OpenHow::Exclusive(verifier) = how {
            self.get_mut(id)?.verifier = Some(verifier);
        }
        self.touch(id, ctx.now, false)?;
        let change = self.insert(ctx, dir, name, id)?;
        Ok(Opened { attrs: self.get(id)?.attrs, created: true, change })
    }

    pub(super) fn remove(&mut self, ctx: &Ctx, dir: FileId, name: &Bytes) -> Result<Removed> {
        let id = self.find_to_change(ctx, dir, name)?.ok_or(Status::NoEnt)?;
        self.check_empty(id)?;
        let change = self.take(ctx, dir, name)?;
        Ok(Removed { id, orphaned: self.unlinked(ctx, id)?, change })
    }

    pub(super) fn rename(
        &mut self,
        ctx: &Ctx,
        from: (FileId, &Bytes),
        to: (FileId, &Bytes),
        how: Renaming,
    ) -> Result<Renamed> {
        let moved = self.find_to_change(ctx, from.0, from.1)?.ok_or(Status::NoEnt)?;
        let target = self.find_to_change(ctx, to.0, to.1)?;
        match (how, target) {
            (Renaming::NoReplace, Some(_)) => return Err(Status::Exist),
            (Renaming::Exchange, None) => return Err(Status::NoEnt),
            _ => {}
        }
        if target == Some(moved) {
            let same = |change| Change { before: change, after: change, atomic: true };
            let (from, to) = (self.get(from.0)?.attrs.change, self.get(to.0)?.attrs.change);
            return Ok(Renamed { from: same(from), to: same(to), replaced: None });
        }
        if let (Renaming::Exchange, Some(target)) = (how, target) {
            return self.exchange(ctx, (from, moved), (to, target));
        }
        let is_dir = |id| self.get(id).map(|inode| inode.attrs.kind == FileKind::Directory);
        if let Some(target) = target {
            match (is_dir(moved)?, is_dir(target)?) {
                (true, false) | (false, true) => return Err(Status::Exist),
                _ => self.check_empty(target)?,
            }
        }
        self.keep_out_of_itself(moved, to.0)?;
        let mut replaced = None;
        if let Some(target) = target {
            self.take(ctx, to.0, to.1)?;
            let bytes = self.get(target)?.attrs.size;
            replaced = Some(Replaced { id: target, orphaned: self.unlinked(ctx, target)?, bytes, room: u64::MAX });
        }
        let left = self.take(ctx, from.0, from.1)?;
        let entered = self.insert(ctx, to.0, to.1, moved)?;
        self.touch(moved, ctx.now, false)?;
        Ok(Renamed { from: left, to: entered, replaced })
    }

    /// Exchanges the files of two names (RENAME_EXCHANGE of renameat2(2)).
    fn exchange(
        &mut self,
        ctx: &Ctx,
        (from, moved): ((FileId, &Bytes), FileId),
        (to, target): ((FileId, &Bytes), FileId),
    ) -> Result<Renamed> {
        self.keep_out_of_itself(moved, to.0)?;
        self.keep_out_of_itself(target, from.0)?;
        let before = (self.get(from.0)?.attrs.change, self.get(to.0)?.attrs.change);
        self.take(ctx, from.0, from.1)?;
        self.take(ctx, to.0, to.1)?;
        self.insert(ctx, from.0, from.1, target)?;
        self.insert(ctx, to.0, to.1, moved)?;
        self.touch(moved, ctx.now, false)?;
        self.touch(target, ctx.now, false)?;
        let since = |dir, before| Ok(Change { before, after: self.get(dir)?.attrs.change, atomic: true });
        Ok(Renamed { from: since(from.0, before.0)?, to: since(to.0, before.1)?, replaced: None })
    }

    /// Returns `Inval` if `dir` is the directory `moved` or lies below it, so that no directory becomes its own
    /// descendant.
    fn keep_out_of_itself(&self, moved: FileId, dir: FileId) -> Result<()> {
        let mut above = dir;
        while above != FileId::ROOT {
            if above == moved {
                return Err(Status::Inval);
            }
            let Content::Entries { parent, .. } = &self.get(above)?.content else { return Err(Status::NotDir) };
            above = *parent;
        }
        Ok(())
    }

    pub(super) fn link(&mut self, ctx: &Ctx, file: FileId, dir: FileId, name: &Bytes) -> Result<Change> {
        if self.get(file)?.attrs.kind == FileKind::Directory {
            return Err(Status::IsDir);
        }
        if self.get(file)?.attrs.nlink == 0 {
            return Err(Status::Stale);
        }
        if self.find_to_change(ctx, dir, name)?.is_some() {
            return Err(Status::Exist);
        }
        self.get_mut(file)?.attrs.nlink += 1;
        self.touch(file, ctx.now, false)?;
        self.insert(ctx, dir, name, file)
    }
}
