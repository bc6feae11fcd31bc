-- Who is calling. Inside a SECURITY DEFINER function current_user is the owner; the role setting and
-- session_user still name the caller.
create or replace function caller() returns name language sql stable
return coalesce(nullif(current_setting('role', true), 'none'), session_user)::name;

create or replace function actor() returns text language sql stable
return coalesce(nullif(current_setting('holdfast.actor', true), ''), caller()::text);
