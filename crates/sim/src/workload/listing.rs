//! Workload operations on names in directories.

use super::{Handle, Process};
use crate::names::{NameReply, NameRequest};
use client::{CreateOptions, OpenFlags};
use types::{Renaming, Status};

/// Number of file names that clients use in a directory. Names have numbers: the file names have the numbers 0 to 3,
/// and the directory names have the numbers from 4 on.
const FILES: u64 = 4;
const DIRECTORIES: u64 = 2;

/// Returns the file name for the number `name`.
pub fn text(name: u8) -> Vec<u8> {
    format!("n{name}").into_bytes()
}

impl Process {
    fn file_name(&mut self) -> u8 {
        self.rng.below(FILES) as u8
    }

    fn directory_name(&mut self) -> u8 {
        (FILES + self.rng.below(DIRECTORIES)) as u8
    }

    pub(super) async fn create(&mut self, dir: usize) {
        let (name, exclusive) = (self.file_name(), self.rng.percent(70));
        let Some(index) = self.ask(dir, NameRequest::Create { name, exclusive }) else { return };
        let opened = self.world.history().model.tick();
        let unsynced = self.policies.percent(self.world.plan.unsynced_percent);
        self.world.history().names[dir][index].unsynced = unsynced;
        let options = CreateOptions { exclusive, unsynced, ..CreateOptions::default() };
        let made = self.mount.create(&self.world.dirs[dir], &text(name), options).await;
        match made {
            Ok(file) => {
                let id = file.node().id;
                // `is_unsynced` is false if the file already existed: the operation has not created the file, so a
                // power loss cannot lose it.
                self.world.history().names[dir][index].unsynced = file.is_unsynced();
                self.reply(dir, index, "create", Ok(NameReply::Ok(Some(id.0))));
                let (handle, made) = (self.new_handle(), Some((dir, index)));
                self.keep(Handle { file, id, handle, opened, writable: true, locked: None, made }).await;
            }
            Err(error) => self.reply(dir, index, "create", Err(error)),
        }
    }

    pub(super) async fn mkdir(&mut self, dir: usize) {
        let name = self.directory_name();
        let Some(index) = self.ask(dir, NameRequest::Mkdir { name }) else { return };
        let made = self.mount.mkdir(&self.world.dirs[dir], &text(name), 0o755).await;
        self.reply(dir, index, "mkdir", made.map(|(node, _)| NameReply::Ok(Some(node.id.0))));
    }

    pub(super) async fn remove(&mut self, dir: usize) {
        let name = if self.rng.percent(70) { self.file_name() } else { self.directory_name() };
        let Some(index) = self.ask(dir, NameRequest::Remove { name }) else { return };
        let removed = self.mount.remove(&self.world.dirs[dir], &text(name)).await;
        self.reply(dir, index, "remove", removed.map(|()| NameReply::Ok(None)));
    }

    pub(super) async fn rename(&mut self, dir: usize) {
        let directories = self.rng.percent(20);
        let mut name = || if directories { self.directory_name() } else { self.file_name() };
        let (from, to) = (name(), name());
        let how = *self.rng.pick(&[Renaming::Replace, Renaming::Replace, Renaming::NoReplace, Renaming::Exchange]);
        let Some(index) = self.ask(dir, NameRequest::Rename { from, to, how }) else { return };
        let node = &self.world.dirs[dir];
        let renamed = self.mount.rename_as((node, &text(from)), (node, &text(to)), how).await;
        self.reply(dir, index, "rename", renamed.map(|()| NameReply::Ok(None)));
    }

    pub(super) async fn link(&mut self, dir: usize) {
        let to = self.file_name();
        let Some(node) = self.open.first().map(|handle| handle.file.node()) else { return };
        let Some(index) = self.ask(dir, NameRequest::Link { file: node.id.0, to }) else { return };
        let linked = self.mount.link(&node, &self.world.dirs[dir], &text(to)).await;
        let linked = match linked {
            // `Stale` means that the file no longer exists, because another client has removed its last name.
            Err(error) if error.is(Status::Stale) && !error.is_in_doubt() => Ok(NameReply::Missing),
            other => other.map(|_| NameReply::Ok(None)),
        };
        self.reply(dir, index, "link", linked);
    }

    pub(super) async fn lookup(&mut self, dir: usize) {
        let name = if self.rng.percent(70) { self.file_name() } else { self.directory_name() };
        let Some(index) = self.ask(dir, NameRequest::Lookup { name }) else { return };
        let found = self.mount.lookup(&self.world.dirs[dir], &text(name)).await;
        self.reply(dir, index, "lookup", found.map(|(node, _)| NameReply::Ok(Some(node.id.0))));
    }

    /// Opens a random permanent file, or looks up a random file name in the directory `dir` and opens this file.
    pub(super) async fn open_some(&mut self, dir: usize) {
        let node = if self.rng.percent(70) {
            self.rng.pick(&self.world.files.clone()).clone()
        } else {
            let name = self.file_name();
            let Some(index) = self.ask(dir, NameRequest::Lookup { name }) else { return };
            let found = self.mount.lookup(&self.world.dirs[dir], &text(name)).await;
            let node = found.as_ref().ok().map(|(node, _)| node.clone());
            self.reply(dir, index, "lookup", found.map(|(node, _)| NameReply::Ok(Some(node.id.0))));
            let Some(node) = node else { return };
            node
        };
        let flags = match self.rng.below(10) {
            0..=2 => OpenFlags::READ,
            3 => OpenFlags { truncate: true, ..OpenFlags::READ_WRITE },
            _ => OpenFlags::READ_WRITE,
        };
        let handle = self.new_handle();
        let (opened, cut) = self.world.note(|history| {
            let cut = flags.truncate.then(|| history.model.cut(node.id, self.client, handle, 0));
            (history.model.tick(), cut)
        });
        crate::trace::say(format!("{} opens file {}: {flags:?}", crate::hosts::name(self.client), node.id.0));
        let file = self.mount.open(&node, flags).await;
        if let Some(cut) = cut {
            self.world.history().model.returned(node.id, cut, file.is_ok());
        }
        match file {
            Ok(file) => {
                let (id, writable) = (node.id, flags.write);
                self.keep(Handle { file, id, handle, opened, writable, locked: None, made: None }).await
            }
            // Another client may have removed the file between this client's lookup and open. So this error is no
            // failure.
            Err(error) if error.is(Status::Stale) || error.is(Status::NoEnt) => {}
            Err(error) => self.tolerate("open", &error),
        }
    }
}
