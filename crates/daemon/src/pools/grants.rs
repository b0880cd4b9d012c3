//! Space for attached disks: gives each disk of a pool grants when its layout wants them, and takes back those that are empty.
//!
//! An I/O thread only sends a message. A thread of each pool changes the catalog, durably, and orders the layout then. So a
//! slow catalog delays writes to new space, and nothing else.
//!
//! # Always true
//! - a grant is in the catalog, durably, before its disk hears of it
//! - a grant is given back only for the attachment whose layout reported it empty: a later one may use it
//! - a disk that was refused gets a grant as soon as the pool has one
//! - after a failed change of the catalog, what the disk does not know of is given to it
//!
//! # Picture
//! ```text
//!   layout ──wanted──> channel ──> thread ──> catalog ──grant──> layout
//!          ──empty───>                    ──> catalog
//! ```

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::pool::Grant;
use tidegate_core::layout::{LayoutNotice, LayoutOrder};
use tidegate_engine::NoticeSink;

use super::reported::Reported;
use super::uses::InUse;
use super::{Alarm, Pools};
use crate::host::Opened;
use crate::os_error::{self, Outcome};

/// How long a layout may take to answer an order that it answers at once. It is carried out later otherwise.
const ANSWER: Duration = Duration::from_secs(1);
/// How long after a failed change of a catalog the next one is tried.
const RETRY: Duration = Duration::from_secs(1);
/// How many changes of a catalog may fail, one after the other, before writes that wait for space fail. Origin: chosen; a guest
/// waits for some seconds.
const TRIES: u32 = 5;

/// An attached disk, as far as its space is concerned.
pub(crate) trait DiskOnPool: Send + Sync {
    /// Gives its layout an order, which it answers at once.
    fn order(&self, order: LayoutOrder, patience: Duration) -> Outcome<()>;

    /// Gives it images of more members.
    fn add_columns(&self, images: Vec<Option<Opened>>) -> Outcome<()>;
}

/// The space of the attached disks of all pools.
#[derive(Default)]
pub(crate) struct Grants {
    pools: Mutex<BTreeMap<Name, Arc<OfPool>>>,
    views: Arc<Views>,
}

/// How many views of each disk are open. None: the disk is being deleted.
type Views = Mutex<BTreeMap<Uuid, Option<u64>>>;

/// A view of a disk that is open, until dropped: the disk's space is read meanwhile.
pub(crate) struct View {
    views: Arc<Views>,
    disk: Uuid,
}

/// A disk is being deleted, until this is dropped: no view of it is open.
pub(crate) struct Deletion {
    views: Arc<Views>,
    disk: Uuid,
}

impl Drop for View {
    fn drop(&mut self) {
        let mut views = locked(&self.views);
        match views.remove(&self.disk).flatten() {
            None | Some(0 | 1) => {}
            Some(more) => drop(views.insert(self.disk, Some(more - 1))),
        }
    }
}

impl Drop for Deletion {
    fn drop(&mut self) {
        locked(&self.views).remove(&self.disk);
    }
}

/// That of one pool.
struct OfPool {
    messages: Sender<Message>,
    disks: Mutex<Disks>,
}

#[derive(Default)]
struct Disks {
    last: u64,
    /// By attachment.
    attached: BTreeMap<u64, Arc<Mutex<Granted>>>,
}

enum Message {
    /// The layout of this attachment reports something.
    Notice(u64, LayoutNotice),
    /// The disk of this attachment takes orders.
    Opened(u64),
    /// The pool has more space.
    SpaceCame,
    End,
}

/// A disk's grants.
struct Granted {
    name: Name,
    uuid: Uuid,
    /// For the images of more members.
    in_use: InUse,
    disk: Option<Arc<dyn DiskOnPool>>,
    /// By index. None: it was given back.
    grants: Vec<Option<Grant>>,
    /// Members that it has images of.
    members: usize,
    /// Those that are to be given back.
    empty: Vec<u32>,
    is_wanted: bool,
    is_refused: bool,
    /// Whether the catalog may have grants that are not in the list: a change has failed.
    is_doubtful: bool,
    failures: u32,
    /// Why the catalog could not be changed.
    trouble: Option<Problem>,
    /// For those who do not wait for the catalog.
    seen: Arc<Mutex<SpaceOf>>,
}

impl Granted {
    /// Says how things are.
    fn show(&self) {
        *locked(&self.seen) = SpaceOf {
            grants: self.grants.iter().flatten().count() as u64,
            is_refused: self.is_refused,
            trouble: self.trouble.clone(),
        };
    }
}

/// What is known of a disk's space without its I/O thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpaceOf {
    /// Grants that it has.
    pub(crate) grants: u64,
    /// Whether the pool has no space for it.
    pub(crate) is_refused: bool,
    /// Why it gets none, if the catalog cannot be changed.
    pub(crate) trouble: Option<Problem>,
}

/// An attached disk's place in its pool, until dropped. Then nothing is given to it or taken from it any more.
pub(crate) struct InPool {
    of: Arc<OfPool>,
    attachment: u64,
    reported: Arc<Reported>,
    /// As it was when the pool's thread looked last.
    seen: Arc<Mutex<SpaceOf>>,
}

impl InPool {
    /// What its layout reports to. What concerns space does not go on to `others`.
    pub(crate) fn sink(&self, others: NoticeSink) -> NoticeSink {
        let (messages, attachment) = (self.of.messages.clone(), self.attachment);
        let reported = Arc::clone(&self.reported);
        let NoticeSink(others) = others;
        NoticeSink(Arc::new(move |notice| match notice {
            LayoutNotice::GrantWanted { .. } | LayoutNotice::GrantEmpty { .. } => {
                // The receiver is gone only when the daemon ends.
                let _ = messages.send(Message::Notice(attachment, notice));
            }
            LayoutNotice::Generation(_) | LayoutNotice::GenerationGone(_) => reported.add(notice),
            other => others(other),
        }))
    }

    /// What its layout reports of its generations.
    pub(crate) fn reported(&self) -> &Arc<Reported> {
        &self.reported
    }

    /// The disk takes orders from now on.
    pub(crate) fn opened(&self, disk: Arc<dyn DiskOnPool>) {
        if let Some(granted) = self.of.granted(self.attachment) {
            locked(&granted).disk = Some(disk);
            let _ = self.of.messages.send(Message::Opened(self.attachment));
        }
    }

    /// The state of its space.
    pub(crate) fn space(&self) -> SpaceOf {
        // The catalog may be slow: nobody waits for it here.
        locked(&self.seen).clone()
    }
}

impl Drop for InPool {
    fn drop(&mut self) {
        let gone = locked(&self.of.disks).attached.remove(&self.attachment);
        if let Some(gone) = gone {
            // Waits until what was begun for it has ended. What comes later finds it gone.
            drop(locked(&gone).disk.take());
        }
    }
}

impl Grants {
    /// A disk of a pool is about to be attached, with these grants and images of so many members.
    pub(crate) fn enter(
        &self,
        pools: &Arc<Pools>,
        pool: &Name,
        (name, uuid, in_use): (&Name, Uuid, InUse),
        grants: Vec<Option<Grant>>,
        members: usize,
    ) -> Outcome<InPool> {
        let of = self.of(pools, pool)?;
        let granted = Granted {
            name: name.clone(),
            uuid,
            in_use,
            disk: None,
            grants,
            members,
            empty: Vec::new(),
            is_wanted: false,
            is_refused: false,
            is_doubtful: false,
            failures: 0,
            trouble: None,
            seen: Arc::default(),
        };
        granted.show();
        let seen = Arc::clone(&granted.seen);
        let mut disks = locked(&of.disks);
        disks.last += 1;
        let attachment = disks.last;
        disks
            .attached
            .insert(attachment, Arc::new(Mutex::new(granted)));
        drop(disks);
        Ok(InPool {
            of,
            attachment,
            reported: Arc::default(),
            seen,
        })
    }

    /// A view of a disk is about to be opened. None: the disk is being deleted.
    pub(crate) fn view(&self, disk: Uuid) -> Option<View> {
        let mut views = locked(&self.views);
        let count = views.entry(disk).or_insert(Some(0)).as_mut()?;
        *count += 1;
        Some(View {
            views: Arc::clone(&self.views),
            disk,
        })
    }

    /// A disk is about to be deleted. None: a view of it is open.
    pub(crate) fn begin_deletion(&self, disk: Uuid) -> Option<Deletion> {
        let mut views = locked(&self.views);
        if views.contains_key(&disk) {
            return None;
        }
        views.insert(disk, None);
        Some(Deletion {
            views: Arc::clone(&self.views),
            disk,
        })
    }

    /// A pool has more space: disks that were refused get it at once.
    pub(crate) fn space_came(&self, pool: &Name) {
        if let Some(of) = locked(&self.pools).get(pool) {
            let _ = of.messages.send(Message::SpaceCame);
        }
    }

    /// Ends the thread of a pool that was destroyed.
    pub(crate) fn forget(&self, pool: &Name) {
        if let Some(of) = locked(&self.pools).remove(pool) {
            let _ = of.messages.send(Message::End);
        }
    }

    /// Ends all threads.
    pub(crate) fn end(&self) {
        for of in std::mem::take(&mut *locked(&self.pools)).into_values() {
            let _ = of.messages.send(Message::End);
        }
    }

    fn of(&self, pools: &Arc<Pools>, pool: &Name) -> Outcome<Arc<OfPool>> {
        let mut all = locked(&self.pools);
        if let Some(of) = all.get(pool) {
            return Ok(Arc::clone(of));
        }
        let (messages, received) = channel();
        let of = Arc::new(OfPool {
            messages,
            disks: Mutex::default(),
        });
        let worker = Worker {
            pools: Arc::clone(pools),
            pool: pool.clone(),
            of: Arc::downgrade(&of),
        };
        std::thread::Builder::new()
            .name(format!("grants-{pool}"))
            .spawn(move || worker.run(&received))
            .map_err(|e| os_error::io(format!("cannot use pool {pool}"), &e))?;
        all.insert(pool.clone(), Arc::clone(&of));
        Ok(of)
    }
}

impl OfPool {
    fn granted(&self, attachment: u64) -> Option<Arc<Mutex<Granted>>> {
        locked(&self.disks).attached.get(&attachment).cloned()
    }

    fn all(&self) -> Vec<Arc<Mutex<Granted>>> {
        locked(&self.disks).attached.values().cloned().collect()
    }
}

/// The thread of a pool.
struct Worker {
    pools: Arc<Pools>,
    pool: Name,
    of: Weak<OfPool>,
}

impl Worker {
    fn run(&self, received: &Receiver<Message>) {
        let mut retries = false;
        loop {
            let message = match retries {
                true => received.recv_timeout(RETRY),
                false => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let Some(of) = self.of.upgrade() else { return };
            match message {
                Ok(Message::Notice(attachment, notice)) => {
                    if let Some(granted) = of.granted(attachment) {
                        self.noticed(&of, &granted, notice);
                    }
                }
                Ok(Message::Opened(attachment)) => {
                    if let Some(granted) = of.granted(attachment) {
                        self.serve(&of, &mut locked(&granted));
                    }
                }
                Ok(Message::SpaceCame) => self.space_came(&of),
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    for granted in of.all() {
                        self.serve(&of, &mut locked(&granted));
                    }
                }
            }
            retries = of.all().iter().any(|granted| locked(granted).failures > 0);
        }
    }

    fn noticed(&self, of: &OfPool, granted: &Mutex<Granted>, notice: LayoutNotice) {
        let mut granted = locked(granted);
        match notice {
            LayoutNotice::GrantWanted { .. } => granted.is_wanted = true,
            LayoutNotice::GrantEmpty { index } => granted.empty.push(index),
            _ => return,
        }
        self.serve(of, &mut granted);
    }

    /// The pool has more space.
    fn space_came(&self, of: &OfPool) {
        for granted in of.all() {
            let mut granted = locked(&granted);
            if granted.is_refused {
                granted.is_wanted = true;
                self.serve(of, &mut granted);
            }
        }
    }

    /// Does for a disk what is to be done.
    fn serve(&self, of: &OfPool, granted: &mut Granted) {
        let Some(disk) = granted.disk.clone() else {
            return;
        };
        match self.change(granted, &*disk) {
            Ok(has_returned) => {
                let has_recovered = std::mem::take(&mut granted.failures) > 0;
                granted.trouble = None;
                if has_returned || has_recovered && granted.is_refused {
                    let _ = of.messages.send(Message::SpaceCame);
                }
            }
            Err(problem) => {
                granted.failures += 1;
                granted.is_doubtful = true;
                if granted.failures == 1 {
                    tracing::warn!(pool = %self.pool, disk = %granted.name, %problem, "the catalog of a pool cannot be \
                         changed for a disk; it is tried again");
                }
                if granted.failures == TRIES && std::mem::take(&mut granted.is_wanted) {
                    // It is asked for again.
                    granted.is_refused = true;
                    let _ = disk.order(LayoutOrder::NoSpace, ANSWER);
                }
                granted.trouble = Some(problem);
            }
        }
        granted.show();
    }

    /// Changes the catalog, and gives the disk what it has wanted. Returns whether the pool got space back.
    fn change(&self, granted: &mut Granted, disk: &dyn DiskOnPool) -> Outcome<bool> {
        if granted.is_doubtful {
            self.compare(granted, disk)?;
        }
        let mut has_returned = false;
        while let Some(index) = granted.empty.last().copied() {
            has_returned |= self.give_back(granted, index)?;
            granted.empty.pop();
        }
        if granted.is_wanted {
            self.give(granted, disk)?;
        }
        Ok(has_returned)
    }

    /// Gives a disk what the catalog says that it has, and it does not know of.
    fn compare(&self, granted: &mut Granted, disk: &dyn DiskOnPool) -> Outcome<()> {
        let uuid = granted.uuid;
        let has = self.with(|pool| pool.catalog.grants_of(uuid))?;
        let empty = std::mem::take(&mut granted.empty);
        for (index, grant) in (0_u32..).zip(&has) {
            let known = granted.grants.get(index as usize).copied().flatten();
            match (known, *grant) {
                (None, Some(grant)) => self.order(granted, disk, index, grant)?,
                // It was given back before the change seemed to fail.
                (Some(_), None) => granted.grants[index as usize] = None,
                _ => {}
            }
        }
        let is_left = |index: &u32| granted.grants.get(*index as usize).copied().flatten();
        let empty = empty.into_iter().filter(|index| is_left(index).is_some());
        granted.empty = empty.collect();
        granted.is_doubtful = false;
        Ok(())
    }

    fn give_back(&self, granted: &mut Granted, index: u32) -> Outcome<bool> {
        let place = granted.grants.get(index as usize).copied().flatten();
        let Some(grant) = place else {
            return Ok(false);
        };
        let uuid = granted.uuid;
        self.with(|pool| pool.catalog.give_back(uuid, grant.column, grant.number))?;
        granted.grants[index as usize] = None;
        Ok(true)
    }

    fn give(&self, granted: &mut Granted, disk: &dyn DiskOnPool) -> Outcome<()> {
        let free = granted.grants.iter().position(Option::is_none);
        let index = free.unwrap_or(granted.grants.len());
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let uuid = granted.uuid;
        let granted_now = self.with(|pool| match pool.catalog.grant(uuid, index) {
            Err(problem) if problem.code == ProblemCode::Full && !pool.catalog.has_failed() => {
                Ok(None)
            }
            granted => granted.map(Some),
        })?;
        match granted_now {
            Some(grant) => self.order(granted, disk, index, grant)?,
            None => self.tell(disk, LayoutOrder::NoSpace)?,
        }
        granted.is_wanted = false;
        let was_refused = std::mem::replace(&mut granted.is_refused, granted_now.is_none());
        if granted.is_refused && !was_refused {
            let disk = granted.name.clone();
            self.pools.alarm(&self.pool, Alarm::Refused(disk));
        }
        Ok(())
    }

    /// Gives a disk a grant that the catalog says is its own.
    fn order(
        &self,
        granted: &mut Granted,
        disk: &dyn DiskOnPool,
        index: u32,
        grant: Grant,
    ) -> Outcome<()> {
        let has = granted.members;
        let more = self.with(|pool| match pool.members() > has {
            true => pool.images(has, &granted.in_use),
            false => Ok(Vec::new()),
        })?;
        let count = more.len();
        if count > 0 {
            // A group was added since the disk was attached.
            disk.add_columns(more)?;
            granted.members += count;
        }
        let at = index as usize;
        if granted.grants.len() <= at {
            granted.grants.resize(at + 1, None);
        }
        granted.grants[at] = Some(grant);
        self.tell(disk, LayoutOrder::Grant { index, grant })
    }

    /// Orders something that is not undone if it is refused: the next attachment finds what the catalog says.
    fn tell(&self, disk: &dyn DiskOnPool, order: LayoutOrder) -> Outcome<()> {
        if let Err(problem) = disk.order(order, ANSWER) {
            if matches!(order, LayoutOrder::Grant { .. }) {
                // It asks again then.
                let _ = disk.order(LayoutOrder::NoSpace, ANSWER);
            }
            tracing::warn!(pool = %self.pool, %problem, ?order, "a disk does not take an order of its pool; what was given to \
                 it is found when it is attached again");
        }
        Ok(())
    }

    fn with<T>(&self, act: impl FnOnce(&mut super::OpenPool) -> Outcome<T>) -> Outcome<T> {
        self.pools.with(&self.pool, act)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete, or the catalog is compared before the next one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
