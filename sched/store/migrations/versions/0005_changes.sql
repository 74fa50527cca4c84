-- What was done to a job or a queue by whom, and why.

alter table rota.job
  add column version integer not null default 1,  -- how often its definition was changed, and one
  add column changes jsonb,                       -- an array, the latest last: what was done, when, by whom, why
  add column paused_by text,                      -- null: nobody paused it, a scheduler set it aside
  add column paused_at timestamptz;

alter table rota.queue
  add column paused_by text,
  add column paused_reason text,
  add column paused_at timestamptz;
