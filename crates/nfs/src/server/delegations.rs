//! Delegations in the NFS server: recalls before a conflicting operation, and CB_GETATTR to the holder of a write
//! delegation (RFC 8881 §10.4).

use super::callbacks::Callbacks;
use super::compound::{Answer, Compound};
use super::notices::Notice;
use super::{Server, lock};
use crate::attrs::{self, Mask};
use crate::fs::{Ctx, FileSystem};
use crate::state::delegations::{Use, Writer};
use crate::state::{ClientId, State};
use futures_util::future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use types::{Attrs, FileId, SetAttrs, SetTime};
use wire::nfs4::*;
use xdr::Xdr;

/// How long a request waits for the return of delegations, or for a fence, before the server replies DELAY. The time
/// suffices for a client without dirty data, and is short enough not to block a session slot for long.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Attributes whose current values only the holder of a write delegation knows.
const OF_WRITER: Mask =
    Mask::of(&[FATTR4_CHANGE, FATTR4_SIZE, FATTR4_SPACE_USED, FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY]);

/// Guard that prevents new delegations of a file, until the guard is dropped.
pub(super) struct Frozen<'a, F: FileSystem, C: Callbacks>(&'a Server<F, C>, FileId);

impl<F: FileSystem, C: Callbacks> Drop for Frozen<'_, F, C> {
    fn drop(&mut self) {
        lock(&self.0.state).thaw_delegations(self.1);
    }
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Recalls the delegations that conflict with a use of the file, except those of the client `except`, and waits for
    /// their return. Until the returned guard is dropped, the server grants no new delegation of the file.
    ///
    /// # Errors
    /// DELAY: the holder has not returned a conflicting delegation yet. The server revokes the delegation one lease
    /// period after the recall.
    pub(super) async fn make_way(
        &self,
        ctx: &Ctx,
        file: FileId,
        what: Use,
        except: Option<ClientId>,
    ) -> Answer<Frozen<'_, F, C>> {
        let is_free = {
            let mut state = lock(&self.state);
            state.freeze_delegations(file);
            !state.is_delegated(file, what, except)
        };
        let frozen = Frozen(self, file);
        if is_free {
            return Ok(frozen);
        }
        let (recalls, effects) = self.change(|state| state.recall_delegations(file, what, except, ctx.now));
        self.settle(ctx, effects).await?;
        self.notify(recalls.into_iter().map(Notice::Recall));
        let free = pin!(self.undelegated(file, what, except));
        let pause = pin!(self.callbacks.pause(PATIENCE));
        future::select(free, pause).await;
        match lock(&self.state).is_delegated(file, what, except) {
            true => Err(NFS4ERR_DELAY.into()),
            false => Ok(frozen),
        }
    }

    /// Waits until no delegation of a client other than `except` conflicts with the use `what` of the file.
    async fn undelegated(&self, file: FileId, what: Use, except: Option<ClientId>) {
        future::poll_fn(|task| {
            // Register the waker before the check, so that the return of a delegation after the check wakes this task.
            lock(&self.waiters).entry(file).or_default().push(task.waker().clone());
            if lock(&self.state).is_delegated(file, what, except) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self.wake(file);
    }

    /// Recalls the delegations of a file that conflict with a change of its names ([`Use::Metadata`]). Does not wait
    /// for their return.
    pub(super) async fn recall_late(&self, ctx: &Ctx, file: FileId, except: Option<ClientId>) {
        let recall = |state: &mut State| state.recall_delegations(file, Use::Metadata, except, ctx.now);
        let (recalls, effects) = self.change(recall);
        self.notify(recalls.into_iter().map(Notice::Recall));
        if let Err(error) = self.settle(ctx, effects).await {
            tracing::warn!(%error, "cannot revoke a delegation");
        }
    }

    /// Requests the file's change attribute and size from the holder of a write delegation (CB_GETATTR, §20.1).
    async fn ask_writer(&self, file: FileId, writer: Writer) -> Option<(u64, u64)> {
        let asked = Mask::of(&[FATTR4_CHANGE, FATTR4_SIZE]);
        let arguments = CB_GETATTR4args { fh: self.handle_for(writer.client.0, file), attr_request: asked.to_bitmap() };
        let answered = self.call_back(writer.client, OP_CB_GETATTR, &arguments).await?;
        if answered.status != NFS4_OK {
            return None;
        }
        let mut body = answered.body;
        let told = CB_GETATTR4resok::decode(&mut body).ok()?;
        let values = attrs::decode_first(&told.obj_attributes, asked).ok()?;
        Some((values.change?, values.size?))
    }
}

impl<'a, F: FileSystem, C: Callbacks> Compound<'a, F, C> {
    /// Recalls the delegations of the file that other clients hold and that conflict with the operation. Waits for
    /// their return. Until the COMPOUND ends, the server grants no new delegation of the file.
    pub(super) async fn make_way(&mut self, file: FileId, what: Use) -> Answer<()> {
        let server: &'a Server<F, C> = self.server;
        let frozen = server.make_way(&self.ctx, file, what, Some(self.client())).await?;
        self.frozen.push(frozen);
        Ok(())
    }

    /// Recalls the delegations of a directory like [`Compound::make_way`], before an operation changes names in the
    /// directory.
    ///
    /// # Errors
    /// GRACE if clients may still rely on directory delegations from before a restart of the server.
    pub(super) async fn make_way_in(&mut self, dir: FileId) -> Answer<()> {
        let now = self.ctx.now;
        if self.state(|state| state.may_rely_on_names(now)) {
            return Err(NFS4ERR_GRACE.into());
        }
        self.make_way(dir, Use::Write).await
    }

    /// Recalls the delegations of the file with this name like [`Compound::make_way`], before an operation removes or
    /// replaces the name. Returns `None` if the server has no delegations other than data delegations (`WANT_DATA`),
    /// which do not cover names. Also returns `None` if the caller cannot look up the name; the operation itself then
    /// fails with the error of the lookup.
    pub(super) async fn make_way_by_name(&mut self, dir: FileId, name: &component4) -> Answer<Option<FileId>> {
        if !self.state(State::any_whole_delegation) {
            return Ok(None);
        }
        let Ok(found) = self.fs().lookup(&self.ctx, dir, name).await else { return Ok(None) };
        self.make_way(found.id, Use::Metadata).await?;
        Ok(Some(found.id))
    }

    /// Recalls the delegations of `file`, except data delegations (`WANT_DATA`), after an operation has removed one of
    /// its names. `expected` is the file whose delegations the server recalled before the operation. If `file` is not
    /// `expected`, recalls the delegations of `file` that other clients hold. If `file` has no name left, recalls the
    /// caller's delegation too, because the server does not free a file with a delegation.
    pub(super) async fn recall_late(&self, file: FileId, orphaned: bool, expected: Option<FileId>) {
        // A directory has only one name, so its directory delegations end with the name.
        let ((), effects) = self.server.change(|state| state.forget_names(file));
        if let Err(error) = self.server.settle(&self.ctx, effects).await {
            tracing::warn!(%error, "cannot drop the directory delegations of clients");
        }
        if orphaned || expected != Some(file) {
            let except = (!orphaned).then(|| self.client());
            self.server.recall_late(&self.ctx, file, except).await;
        }
    }

    /// Returns the attributes of a file. If another client holds a write delegation, that client supplies the
    /// attributes of `mask` that it may have changed.
    ///
    /// If the holder has changed the file, the server increments the file's change attribute after every CB_GETATTR
    /// (§10.4.3). No other client has the file open, so the increments invalidate no cache of another client.
    pub(super) async fn attributes(&self, file: FileId, mask: Mask) -> Answer<Attrs> {
        let mut attrs = self.attributes_of(file, mask).await?;
        if attrs.holes && mask.has(FATTR4_SPACE_USED) {
            // The future of `correct_space` is rarely needed, so it is boxed.
            Box::pin(self.fs().correct_space(&mut [&mut attrs])).await;
        }
        Ok(attrs)
    }

    async fn attributes_of(&self, file: FileId, mask: Mask) -> Answer<Attrs> {
        let client = self.client();
        let attrs = self.fs().getattr(&self.ctx, file).await?;
        if mask.and(OF_WRITER).is_empty() {
            return Ok(attrs);
        }
        let Some(writer) = self.state(|state| state.delegated_writer(file, client)) else { return Ok(attrs) };
        // The future of `attributes_of_writer` is large and rarely needed, so it is boxed.
        Box::pin(self.attributes_of_writer(file, writer, attrs)).await
    }

    async fn attributes_of_writer(&self, file: FileId, writer: Writer, attrs: Attrs) -> Answer<Attrs> {
        let told = if writer.data { None } else { self.server.ask_writer(file, writer).await };
        let Some((change, size)) = told else {
            // A holder that does not answer CB_GETATTR may have changed the file, so the server recalls the delegation.
            self.server.make_way(&self.ctx, file, Use::Read, Some(self.client())).await?;
            return Ok(self.fs().getattr(&self.ctx, file).await?);
        };
        if change == writer.change {
            return Ok(attrs);
        }
        let ctx = Ctx { cred: types::Cred::root(), client: writer.client.0, ..self.ctx.clone() };
        let touched = SetAttrs { mtime: Some(SetTime::Now), ..SetAttrs::default() };
        let attrs = self.fs().setattr(&ctx, file, touched, false).await?;
        Ok(Attrs { size, ..attrs })
    }
}
